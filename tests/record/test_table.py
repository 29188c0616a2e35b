"""The tidy table: every measurement is one row, and nothing recorded disappears."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paribus.plan.content import DataContent, ModelContent
from paribus.plan.design import Plan, expand
from paribus.plan.study import Study
from paribus.plan.trial import Heldout
from paribus.record.result import Cost, Finished, HeldoutScore, Reading, TrialResult, Unsupported
from paribus.record.store import Store
from paribus.record.table import MEASURED, coordinates, tidy
from paribus.techniques import ModelFacts

STUDY = """\
paribus: 1
name: table
model: {source: embedded}
data: {source: embedded}
training: {epochs: 1}
vary: {neftune_noise_alpha: [0, 5], training.learning_rate: [1e-3, 2e-3]}
repeat: {seeds: [0, 1]}
compare: {metric: test.new_wording.loss}
"""


class Contents:
    def model(self, block: Any) -> ModelContent:
        facts = ModelFacts(
            architecture="Tiny", model_type="llama", parameters=10, bias_parameters=0,
            hidden_size=2, layers=1, vocabulary=5,
        )  # fmt: skip
        return ModelContent("m" * 64, facts)

    def data(self, block: Any) -> DataContent:
        return DataContent("d" * 64, {"validation": {"new_wording": ()}, "test": {"new_wording": ()}})

    def template(self, model: Any, data: Any) -> str:
        return "t" * 64

    def heldout(self, data: Any) -> Heldout:
        return Heldout(groups=("new_wording",))


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Plan, Store]:
    (tmp_path / "study.yaml").write_text(STUDY)
    plan, store = expand(Study.read(tmp_path), Contents()), Store(tmp_path / "results")
    first, second = plan.jobs[0], plan.jobs[1]
    for job, outcome in (
        (first, Finished()),
        (second, Unsupported(technique="t", reason="no", way_out="w")),
    ):
        store.write_job(job)
        cost = Cost(
            train_seconds=2, step_seconds_median=0.5, tokens_per_second=8, trainable_parameters=3,
            total_parameters=4,
        )  # fmt: skip
        store.publish_result(
            TrialResult(
                trial_id=job.trial_id, attempt=1, machine_class="cpu", provenance="p", result=outcome,
                cost=cost if outcome.outcome == "finished" else None,
            )
        )  # fmt: skip
    curve = [
        Reading(
            step=s,
            epoch=s / 4,
            split="test",
            group="new_wording",
            loss=3.0 - s,
            accuracy=0.5,
            targets=9,
            examples=2,
        )
        for s in (0, 1, 2)
    ]
    name = first.trial.score_id(first.scores[0])
    score = HeldoutScore(score_id=name, trial_id=first.trial_id, setting={}, curve=tuple(curve))
    store.publish_score(score, None)
    return plan, store


def test_a_row_is_a_measurement_and_names_its_place(recorded: tuple[Plan, Store]) -> None:
    plan, store = recorded
    table = tidy(plan, store)
    axes = ["neftune_noise_alpha", "training.learning_rate"]
    assert list(plan.axes) == axes
    assert list(table.columns) == ["trial_id", "group", "seed", "outcome", *axes, *MEASURED]
    losses = table[(table.metric == "loss") & (table.split == "test")]
    assert list(zip(losses.reading, losses.value, losses.group_name, strict=True)) == [
        ("base", 3.0, "new_wording"),
        ("along", 2.0, "new_wording"),
        ("last", 1.0, "new_wording"),
    ]
    seconds = table[table.metric == "train_seconds"]
    assert list(seconds.value) == [2.0]
    assert list(seconds.unit) == ["seconds"]
    assert "peak_memory_bytes" not in set(table.metric)


def test_a_failed_trial_keeps_a_row_and_a_missing_one_has_none(recorded: tuple[Plan, Store]) -> None:
    plan, store = recorded
    table = tidy(plan, store)
    failed = table[table.trial_id == plan.jobs[1].trial_id]
    assert list(failed.outcome) == ["unsupported"]
    assert failed.value.isna().all()
    assert set(table.trial_id) == {plan.jobs[0].trial_id, plan.jobs[1].trial_id}


def test_levels_are_named_as_in_the_plan(recorded: tuple[Plan, Store]) -> None:
    plan, store = recorded
    places, table = coordinates(plan), tidy(plan, store)
    for row in table.itertuples():
        assert row.neftune_noise_alpha == places[str(row.trial_id)]["neftune_noise_alpha"]
    assert set(table["training.learning_rate"]) <= {
        c.coordinates["training.learning_rate"] for c in plan.cells
    }


def test_an_empty_store_gives_an_empty_table_with_all_columns(recorded: tuple[Plan, Store]) -> None:
    plan, store = recorded
    table = tidy(plan, Store(store.root / "elsewhere"))
    assert len(table) == 0
    assert "value" in table.columns
