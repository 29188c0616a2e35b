"""Checkpoints that are damaged, of something else or half written, and what they hold."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import End, Stopped, differing, go, same, stops_at

import tiny
from paribus.techniques import Full
from paribus.techniques.base import OF_THIS_PROCESS
from paribus.train import checkpoint, packed
from paribus.train.checkpoint import Checkpoints


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> End:
    """A run that nothing stopped."""
    return go(tmp_path_factory.mktemp("whole"))


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step-*"))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.pt", "state.json", "checkpoint.json"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(whole: End, tmp_path: Path, name: str) -> None:
    with pytest.raises(Stopped):
        go(tmp_path, trainer_class=stops_at(7))
    path = newest(tmp_path) / name
    path.write_text("{") if name == "checkpoint.json" else damage(path)
    end = go(tmp_path)
    assert differing(end, whole) == []
    assert end.trained.resolved["resumed"]["at_steps"] == [4]
    assert "the checkpoint at step 6 was not used: it is damaged" in end.trained.warnings[-1]


def test_where_all_are_damaged_training_begins_anew(whole: End, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        go(tmp_path, trainer_class=stops_at(7))
    for path in (tmp_path / "checkpoints").iterdir():
        (path / "rng_state.pth").unlink()
    end = go(tmp_path)
    assert differing(end, whole) == []
    assert "resumed" not in end.trained.resolved
    assert len(end.trained.warnings) == len(whole.trained.warnings) + 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": "another"}, "it is of another trial"),
        ({"splits": 1}, "micro_batch 2, now 6"),
        ({"versions": {"torch": "1.0"}}, "it was made with torch"),
        ({"model": tiny.gpt2}, "is not what it was"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Stopped):
        go(tmp_path, (Full(),), trainer_class=stops_at(3))
    if versions := change.pop("versions", None):
        found = checkpoint.versions()
        monkeypatch.setattr(checkpoint, "versions", lambda: found | versions)
    end = go(tmp_path, (Full(),), **change)
    assert "resumed" not in end.trained.resolved
    assert reason in end.trained.warnings[-1]
    assert differing(end, go(tmp_path / "fresh", (Full(),), **change)) == []


@pytest.mark.parametrize("point", ["before_seal", "before_rename"])
def test_a_full_disk_costs_the_checkpoint_alone(
    whole: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setenv("PARIBUS_FAULT", f"ENOSPC:*:{point}:*")
    end = go(tmp_path)
    assert [name for name in differing(end, whole) if name != "optimizer"] == []
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert "5 checkpoints could not be written, first at step 2: [Errno 28]" in end.trained.warnings[-1]


@pytest.mark.parametrize("point", ["before_seal", "before_rename", "after_checkpoint"])
def test_a_kill_while_saving_leaves_the_older_one(whole: End, tmp_path: Path, point: str) -> None:
    pid = os.fork()
    if pid == 0:
        os.environ["PARIBUS_FAULT"] = f"kill:*:{point}:step-00000006"
        go(tmp_path)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 9
    end = go(tmp_path)
    assert differing(end, whole) == []
    assert end.trained.resolved["resumed"]["at_steps"] == [6 if point == "after_checkpoint" else 4]
    assert not list((tmp_path / "checkpoints").glob(".tmp-*"))


def test_what_is_not_of_the_disk_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(words: str) -> Any:
        def fill(*_: Any) -> None:
            raise RuntimeError(words)

        return fill

    checkpoints = Checkpoints(tmp_path, 1, "key")
    checkpoints.write(1, {}, fails("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"))
    assert len(checkpoints.unwritten) == 1  # a full disk in the words of torch
    with pytest.raises(RuntimeError, match="shapes"):
        checkpoints.write(2, {}, fails("shapes do not match"))
    assert list(tmp_path.iterdir()) == []


@dataclass
class Observed:
    total: Any = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    alphas: tuple[float, ...] = ()
    modules: set[int] = field(default_factory=set, metadata=OF_THIS_PROCESS)


def test_what_a_technique_observes_comes_back_in_kind(tmp_path: Path) -> None:
    before, after = Observed(torch.tensor(0.1), Counter(a=2), (1.0, 0.1), {id(tmp_path)}), Observed()
    packed.write(packed.sums(before), tmp_path)
    packed.put_back(after, packed.read(tmp_path), torch.device("cpu"))
    assert (after.total, after.seen, after.alphas) == (before.total, before.seen, before.alphas)
    assert (type(after.seen), after.modules) == (Counter, set())
    assert packed.sums({"digests": "of the start"}) is None


def test_state_comes_back_to_its_last_bit_and_what_cannot_is_named(tmp_path: Path) -> None:
    tree = {"a": [1, 0.1, float("inf"), None, "ü", True], 3: {"b": torch.tensor(0.1)}, "c": {}}
    packed.write(tree, tmp_path)
    assert same(packed.read(tmp_path), tree)
    with pytest.raises(TypeError, match=r"state\.x\[1\] is a Path|state\.x\[1\] is a PosixPath"):
        packed.write({"x": [1, Path()]}, tmp_path)


def test_a_manifest_says_what_made_it(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        go(tmp_path, trainer_class=stops_at(3))
    manifest = json.loads((newest(tmp_path) / "checkpoint.json").read_text())
    assert (manifest["step"], manifest["key"]) == (2, "this one")
    assert manifest["versions"]["torch"] == torch.__version__
    assert set(manifest["contents"]) == {
        "optimizer.pt", "rng_state.pth", "scheduler.pt", "state.json", "state.safetensors",
        "trainer_state.json", "weights.safetensors",
    }  # fmt: skip
    shutil.rmtree(tmp_path)
