"""The lock: what was planned under results, what counts as a change, and where hub models are pinned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from studies import FixedContents, plan, quickstart, short

from paribus.errors import ChangedStudyError, RecordError
from paribus.plan.content import ModelContent
from paribus.plan.design import Plan, expand
from paribus.plan.lock import LOCK, check_change, pinned, read_lock, write_lock
from paribus.plan.reading import parse_study
from paribus.sources.blocks import HubModel, ModelBlock


def record(planned: Plan, folder: Path, count: int = 1) -> None:
    """Stand for a run: the lock and the results of the first trials."""
    write_lock(planned, folder)
    for job in planned.jobs[:count]:
        (folder / job.trial_id).mkdir()
        job.write(folder / job.trial_id / "trial.json")
        (folder / job.trial_id / "result.json").write_text("{}")


def test_a_lock_holds_the_study_and_what_it_planned(tmp_path: Path) -> None:
    planned = plan(quickstart())
    write_lock(planned, tmp_path / "new folder ü")
    lock = read_lock(tmp_path / "new folder ü")
    assert (tmp_path / "new folder ü" / "study.yaml").read_text(encoding="utf-8") == quickstart()
    assert lock["trials"] == [job.trial_id for job in planned.jobs]
    assert lock["settings"]["training.learning_rate"] == 2e-3
    assert lock["settings"]["content.train_sha256"] == planned.jobs[0].trial.content.train_sha256


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ("learning_rate: 2e-3", "learning_rate: 3e-3", "training.learning_rate: 0.002 -> 0.003", 10),
        ("warmup_steps: 10", "warmup_steps: 0", "training.warmup_steps: 10 -> 0", 12),
        ("train_examples: 128", "train_examples: 64", "data.train_examples: 128 -> 64", 6),
        ("epochs: 8", "max_steps: 8", "training.epochs: 8 -> absent; training.max_steps: absent -> 8", 9),
    ],
)
def test_a_changed_fixed_value_is_named(tmp_path: Path, old: str, new: str, said: str, line: int) -> None:
    record(plan(quickstart()), tmp_path, count=2)
    changed = plan(quickstart().replace(old, new))
    with pytest.raises(ChangedStudyError) as caught:
        check_change(changed, tmp_path)
    assert said in caught.value.message
    assert "none of the 2 recorded trials is part of the study any more" in caught.value.message
    assert "--accept-change" in str(caught.value.way_out)
    assert caught.value.place is not None and caught.value.place.line == line


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[0, 5, 10]", "[0, 5, 10, 15]"),
        ("[0, 5, 10]", "[0]"),
        ("seeds: [0, 1, 2]", "seeds: [0, 1, 2, 3]"),
        ("seeds: [0, 1, 2]", "seeds: [7, 8]"),
        ("train_sample: 64", "train_sample: 32"),
        ("metric: test.same_wording", "metric: test.new_wording"),
        ("name: quickstart", "name: quickstart"),
        ("price_per_hour: 2.5", "price_per_hour: 3"),
    ],
)
def test_more_values_seeds_or_scores_are_no_change(tmp_path: Path, old: str, new: str) -> None:
    record(plan(quickstart()), tmp_path)
    check_change(plan(quickstart().replace(old, new)), tmp_path)


def test_an_accepted_change_is_accepted_once_and_deletes_nothing(tmp_path: Path) -> None:
    before, after = plan(quickstart()), plan(quickstart().replace("epochs: 8", "epochs: 4"))
    record(before, tmp_path)
    check_change(after, tmp_path, accept=True)
    write_lock(after, tmp_path)
    check_change(after, tmp_path)
    check_change(before, tmp_path)
    assert (tmp_path / before.jobs[0].trial_id / "result.json").exists()


def test_without_results_everything_may_change(tmp_path: Path) -> None:
    write_lock(plan(quickstart()), tmp_path)
    check_change(plan(quickstart().replace("epochs: 8", "epochs: 4")), tmp_path)


@pytest.mark.parametrize("damage", [None, "", "{", "[]"])
def test_a_lost_or_damaged_lock_hides_no_change(tmp_path: Path, damage: str | None) -> None:
    record(plan(quickstart()), tmp_path)
    if damage is None:
        (tmp_path / LOCK).unlink()
    else:
        (tmp_path / LOCK).write_text(damage)
    check_change(plan(quickstart()), tmp_path)
    with pytest.raises(ChangedStudyError, match=r"training\.epochs: 8 -> 4"):
        check_change(plan(quickstart().replace("epochs: 8", "epochs: 4")), tmp_path)


def test_content_that_changed_under_the_same_name_is_a_change(tmp_path: Path) -> None:
    class Edited(FixedContents):
        def model(self, block: ModelBlock) -> ModelContent:
            return ModelContent("9" * 64, super().model(block).facts)

    record(plan(short()), tmp_path)
    with pytest.raises(ChangedStudyError, match=r"the content of model: .* -> 999999999999"):
        check_change(expand(parse_study(short()), Edited()), tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file stands here")
    with pytest.raises(RecordError, match="cannot be written") as caught:
        write_lock(plan(short()), tmp_path / "results" / "short")
    assert "--results" in str(caught.value.way_out)


def test_a_hub_model_stays_at_the_commit_of_its_results(tmp_path: Path) -> None:
    class Hub(FixedContents):
        def __init__(self, head: str) -> None:
            super().__init__()
            self.head = head

        def model(self, block: ModelBlock) -> ModelContent:
            assert isinstance(block, HubModel)
            commit = block.revision if block.revision and block.revision != "main" else self.head
            return ModelContent(commit * 8, super().model(block).facts, commit)

    study = parse_study(short().replace("{source: embedded}", "{source: hub, name: some/model}", 1))
    first = expand(study, Hub("a" * 8))
    write_lock(first, tmp_path)
    for _ in range(2):
        later = expand(pinned(study, tmp_path), Hub("b" * 8))
        assert [job.trial_id for job in later.jobs] == [job.trial_id for job in first.jobs]
        assert later.jobs[0].trial.model == HubModel(name="some/model", revision="a" * 8)
        write_lock(later, tmp_path)
    assert json.loads((tmp_path / LOCK).read_text())["commits"]["some/model"] == "a" * 8
    assert expand(study, Hub("b" * 8)).jobs[0].trial_id != first.jobs[0].trial_id
