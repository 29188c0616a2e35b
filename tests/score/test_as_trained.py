"""Scored twice: the trained weights in fp32, and computed as they were trained."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tiny
from paribus.plan.trial import Heldout
from paribus.record.result import Reading
from paribus.score.heldout import Scorer
from paribus.techniques import Bf16, Fp8, Fp32, Int4, Live, Noise

HELD: Any = {"validation": {"same": tiny.rows(6, seed=2)}, "test": {"same": tiny.rows(6, seed=4)}}


def curve(technique: Any, evaluate_in: Any = "as_trained") -> list[Reading]:
    scorer = Scorer(Heldout(train_sample=0, evaluate_in=evaluate_in), (), HELD)
    live = Live(seed=0)
    with technique.applied(tiny.llama().eval(), live) as model:
        scorer.read(model, 0, 0.0, partial(technique.as_trained, model, live))
    return scorer.curve


@pytest.mark.parametrize("technique", [Fp32(), Noise(alpha=5)], ids=["fp32", "noise"])
def test_what_rounds_nothing_has_the_same_numbers_twice(technique: Any) -> None:
    for reading in curve(technique):
        assert reading.loss_as_trained == reading.loss
        assert reading.accuracy_as_trained == reading.accuracy


def test_rounding_shows_as_trained_alone_and_more_where_it_is_coarser() -> None:
    exact = [reading.loss for reading in curve(Fp32())]
    damage = []
    for technique in (Bf16(compute="emulated"), Fp8(compute="emulated"), Int4(compute="emulated")):
        found = curve(technique)
        assert [reading.loss for reading in found] == exact
        damage.append(max(abs(r.loss_as_trained - r.loss) for r in found if r.loss_as_trained is not None))
    assert 0 < damage[0] < damage[1] < damage[2]


def test_in_fp32_alone_it_is_absent_from_what_is_written() -> None:
    reading = curve(Fp8(compute="emulated"), "fp32")[0]
    assert reading.loss_as_trained is None
    assert "loss_as_trained" not in reading.model_dump()
    assert Reading(**reading.model_dump()) == reading


def test_it_is_in_the_id_of_a_score_only_where_it_is_asked_for() -> None:
    plain, twice = Heldout(), Heldout(evaluate_in="as_trained")
    assert "evaluate_in" not in plain.canonical()
    assert twice.canonical()["evaluate_in"] == "as_trained"


def test_what_scoring_rounds_is_in_no_count_of_the_proof(tmp_path: Path) -> None:
    live, technique = Live(seed=0), Fp8(compute="emulated", scaling="delayed")
    scorer = Scorer(Heldout(train_sample=0, evaluate_in="as_trained"), (), HELD)
    with technique.applied(tiny.llama().eval(), live) as model:
        scorer.read(model, 0, 0.0, partial(technique.as_trained, model, live))
        tally = live.observed["precision"]
        assert not tally.products and not tally.errors
        assert all(not history.largest and history.now is None for history in tally.histories.values())
