"""Reading a record: sound values come back whole, damage is named and set aside, nothing else is touched."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import synthetic

from paribus.errors import RecordError
from paribus.record import lease
from paribus.record.provenance import provenance
from paribus.record.result import Diverged, Finished, OutOfMemory, TrialResult
from paribus.record.rules import Rules
from paribus.record.store import Store, to_parquet
from paribus.run.preparation import set_aside_damage

JOB = synthetic.jobs(1)[0]
SCORE_ID = JOB.trial.score_id(JOB.scores[0])
RULES = Rules(machine_class="here", provenance="p")


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "résults of a study")
    fill(store)
    return store


def fill(store, outcome=None):
    performed = synthetic._finished(JOB)
    store.write_job(JOB)
    for one in performed.scores:
        store.publish_score(one, performed.items[one.score_id])
    store.publish_curves(JOB.trial_id, performed.steps, b"log")
    result = TrialResult(
        trial_id=JOB.trial_id, attempt=1, machine_class="here", provenance="p", result=outcome or Finished(),
        identity=performed.identity, counts=performed.counts, proof=performed.proof,
    )  # fmt: skip
    assert store.publish_result(result)


def test_what_is_published_is_read_back(store):
    one = store.recorded()[JOB.trial_id]
    assert one.job == JOB
    assert one.result.identity == synthetic._finished(JOB).identity
    assert one.scores == synthetic._finished(JOB).scores
    assert store.results() == {JOB.trial_id: one.result}
    assert list(store.steps(JOB.trial_id)["loss"]) == [1.0, 0.5, 1 / 3]
    assert list(store.items(JOB.trial_id, SCORE_ID)["targets"]) == [4]
    assert store.problems == []
    assert store.settled(JOB, RULES)


def test_a_result_is_small(store):
    assert (store.folder(JOB.trial_id) / "result.json").stat().st_size < 4096


def test_a_missing_folder_is_an_empty_record(tmp_path):
    store = Store(tmp_path / "nothing here")
    assert store.recorded() == {}
    assert store.problems == []
    assert not store.root.exists()


def test_other_files_and_folders_are_no_trials(store):
    (store.root / "provenance").mkdir()
    (store.root / "report.html").write_text("x")
    (store.root / "notes").mkdir()
    assert list(store.recorded()) == [JOB.trial_id]


DAMAGE = {
    "truncated": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "not JSON": lambda text: "<html>",
    "foreign": lambda text: text.replace(JOB.trial_id, "0123456789abcdef"),
    "unknown key": lambda text: text.replace("{", '{"surprise": 1, ', 1),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", ["result.json", f"scores/{SCORE_ID}.json", "trial.json"])
def test_a_damaged_file_is_named_and_set_aside_and_only_then_moved(store, name, how):
    path = store.folder(JOB.trial_id) / name
    path.write_text(DAMAGE[how](path.read_text()))
    (problem,) = store.problems
    assert problem.path == path
    assert str(path) in str(problem)
    assert path.exists(), "reading moves nothing"
    place = store.set_aside(problem)
    assert (place / name).exists()
    assert not path.exists()
    assert store.problems == []
    assert store.settled(JOB, RULES) == (name == "trial.json")


def test_a_result_of_another_schema_is_named(store):
    path = store.folder(JOB.trial_id) / "result.json"
    path.write_text(path.read_text().replace('"paribus": 1', '"paribus": 2'))
    (problem,) = store.problems
    assert "schema 2" in problem.reason


@pytest.mark.parametrize("name", ["curves.parquet", f"items/{SCORE_ID}.parquet"])
def test_a_truncated_table_is_named(store, name):
    path = store.folder(JOB.trial_id) / name
    path.write_bytes(path.read_bytes()[:-3])
    (problem,) = store.problems
    assert problem.path == path
    store.set_aside(problem)
    assert not store.settled(JOB, RULES)


@pytest.mark.parametrize("name", ["curves.parquet", f"items/{SCORE_ID}.parquet"])
def test_a_deleted_table_is_named_and_made_again(store, name):
    path = store.folder(JOB.trial_id) / name
    path.unlink()
    (problem,) = store.problems
    assert problem.path == path and "missing" in problem.reason
    said = [message for _, message in set_aside_damage([JOB], store)]
    assert len(said) == 1 and str(path) in said[0]
    assert not store.settled(JOB, RULES)


def test_a_file_in_the_place_of_a_folder_is_named(store, tmp_path):
    store.check()
    (tmp_path / "a file").write_text("in the way")
    for inside in ("", "study"):
        with pytest.raises(RecordError, match=r"a file: .*folder"):
            Store(tmp_path / "a file" / inside).check()
    (tmp_path / "attempts").write_text("in the way")
    with pytest.raises(RecordError, match=r"attempts: .*not a directory"):
        lease.numbers(tmp_path / "attempts")


def test_setting_a_result_aside_keeps_everything_it_stood_with(store):
    folder = store.folder(JOB.trial_id)
    (folder / "result.json").write_text("{")
    place = store.set_aside(store.problems[0])
    kept = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert kept == {
        "result.json", "curves.parquet", "log.txt", f"scores/{SCORE_ID}.json", f"items/{SCORE_ID}.parquet",
    }  # fmt: skip


def test_an_unreadable_table_says_what_to_do(store):
    path = store.folder(JOB.trial_id) / "curves.parquet"
    path.write_bytes(b"PAR1PAR1")
    with pytest.raises(RecordError) as caught:
        store.steps(JOB.trial_id)
    assert str(path) in str(caught.value)


def test_a_score_that_was_added_leaves_the_trial_unsettled(store):
    (more,) = synthetic.jobs(1, train_sample=(64, 128))
    assert more.trial_id == JOB.trial_id
    assert not store.settled(more, RULES)


def test_outcomes_that_speak_of_a_machine_count_only_there(tmp_path):
    store = Store(tmp_path)
    fill(store, OutOfMemory(phase="training"))
    assert store.settled(JOB, RULES)
    assert not store.settled(JOB, Rules(machine_class="elsewhere", provenance="p"))


def test_a_diverged_trial_is_settled_without_scores(tmp_path):
    store = Store(tmp_path)
    result = TrialResult(
        trial_id=JOB.trial_id, attempt=1, machine_class="here", provenance="p",
        result=Diverged(step=3, quantity="loss", value="nan", bound=100.0),
    )  # fmt: skip
    store.publish_result(result)
    assert store.settled(JOB, Rules(machine_class="elsewhere", provenance="p"))


def test_superseding_numbers_its_folders(store):
    store.supersede(JOB.trial_id)
    fill(store)
    store.supersede(JOB.trial_id)
    folders = sorted(path.name for path in (store.folder(JOB.trial_id) / "superseded").iterdir())
    assert folders == ["0001", "0002"]
    assert store.superseded_attempt(JOB.trial_id) == 1
    assert store.result(JOB.trial_id) is None


def test_rows_with_different_keys_make_one_table():
    import io

    import pandas as pd

    data = to_parquet([{"step": 1, "loss": 0.5}, {"step": 2, "loss": float("nan")}])
    assert list(pd.read_parquet(io.BytesIO(data)).columns) == ["step", "loss"]


def test_provenance_is_kept_once_and_names_no_place(store):
    environment = {"OMP_NUM_THREADS": "1", "SECRET": "hunter2", "HOME": "/some/where"}
    record = provenance(synthetic.MACHINE, environment)
    name = store.write_provenance(record)
    assert store.write_provenance(record) == name
    text = (store.root / "provenance" / f"{name}.json").read_text()
    assert json.loads(text) == record
    assert record["threads"] == {"OMP_NUM_THREADS": "1"}
    assert "/" not in text.replace('"source_sha256"', "")
    assert "hunter2" not in text


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError) as caught:
        Store(tmp_path / "file" / "results").prepare()
    assert "--results" in str(caught.value.way_out)


READ_ONLY = """
import os, sys
from paribus.errors import RecordError
from paribus.record.store import Store
if os.getuid() == 0:
    os.setuid(65534)
try:
    Store(sys.argv[1]).prepare()
except RecordError as error:
    print(error.message)
"""


def test_a_read_only_folder_is_refused_to_an_ordinary_user():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        command = [sys.executable, "-c", READ_ONLY, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "results cannot be recorded: it may not be written", done.stderr
