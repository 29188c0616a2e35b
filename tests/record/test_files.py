"""A published file is whole or absent, and never replaced."""

import errno
import json
import math
import os

import pytest
from safetensors import SafetensorError

from paribus.errors import RecordError
from paribus.record import files


def test_a_name_is_given_once_and_leaves_no_temporary_file(tmp_path):
    path = tmp_path / "näme with space.json"
    assert files.publish(path, b"first")
    assert not files.publish(path, b"second")
    assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["näme with space.json"]


@pytest.mark.parametrize("point", ["before_fsync", "before_link"])
def test_a_full_disk_leaves_nothing_and_says_what_to_do(tmp_path, monkeypatch, point):
    monkeypatch.setenv("PARIBUS_FAULT", f"ENOSPC:*:{point}:result.json")
    with pytest.raises(RecordError) as caught:
        files.publish(tmp_path / "result.json", b"{}")
    assert "no space is left" in caught.value.message
    assert "Free some space" in str(caught.value.way_out)
    assert files.out_of_space(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError) as caught:
        files.publish(tmp_path / "file" / "result.json", b"{}")
    assert str(tmp_path / "file") in str(caught.value)
    assert "--results" in str(caught.value.way_out)


def test_only_the_named_point_of_the_named_role_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("PARIBUS_FAULT", "ENOSPC:worker:before_link:result.json")
    assert files.publish(tmp_path / "result.json", b"{}")
    monkeypatch.setenv("PARIBUS_ROLE", "worker")
    assert files.publish(tmp_path / "trial.json", b"{}")
    with pytest.raises(RecordError):
        files.publish(tmp_path / "other" / "result.json", b"{}")


def test_a_fault_that_happens_once_happens_to_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("PARIBUS_FAULT", "ENOSPC:*:before_link:*")
    monkeypatch.setenv("PARIBUS_FAULT_ONCE", str(tmp_path / "happened"))
    with pytest.raises(RecordError):
        files.publish(tmp_path / "a.json", b"{}")
    assert files.publish(tmp_path / "a.json", b"{}")


def test_json_has_no_word_for_what_is_not_a_number():
    data = files.to_json({"loss": math.nan, "deep": [{"x": -math.inf}, 1.5], "word": "é"})
    assert json.loads(data) == {"loss": None, "deep": [{"x": None}, 1.5], "word": "é"}
    assert "é".encode() in data


def test_sweeping_spares_what_may_still_be_written(tmp_path):
    old, young = tmp_path / ".tmp-1-old", tmp_path / "scores" / ".tmp-2-young"
    young.parent.mkdir()
    for path in (old, young):
        path.write_text("half")
    os.utime(old, (0, 0))
    files.sweep(tmp_path, older_than=3600)
    assert not old.exists()
    assert young.exists()
    files.sweep(tmp_path)
    assert not young.exists()


def test_a_lock_is_held_until_every_holder_has_let_go(tmp_path):
    path = tmp_path / "lease.json"
    first = files.take_lock(path, create=True)
    assert first is not None
    second = os.dup(first)
    os.close(first)
    assert files.take_lock(path) is None
    os.close(second)
    third = files.take_lock(path)
    assert third is not None
    os.close(third)


@pytest.mark.parametrize(
    ("code", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False)]
)
def test_a_full_disk_is_known_from_the_words_of_safetensors(code, full):
    words = f"Error while serializing: I/O error: {os.strerror(code)} (os error {code})"
    assert files.out_of_space(SafetensorError(words)) is full
