"""Held-out loss is a sum over targets, the same whatever the batches; its items add up to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import tiny
from paribus.plan.trial import Heldout
from paribus.score.heldout import Scorer, fixed_sample

TRAIN = tiny.rows(30, seed=1)
HELD: dict[Any, Mapping[str, Sequence[Any]]] = {
    "validation": {"same": tiny.rows(20, seed=2), "new": tiny.rows(11, seed=3)},
    "test": {"same": tiny.rows(20, seed=4), "new": tiny.rows(7, seed=5)},
}


def scored(batch_tokens: int = 2048, **setting: Any) -> Scorer:
    scorer = Scorer(Heldout(train_sample=10, **setting), TRAIN, HELD, batch_tokens=batch_tokens)
    scorer.read(tiny.llama().eval(), 0, 0.0)
    return scorer


def test_it_is_the_loss_of_the_rows_one_by_one() -> None:
    model = tiny.llama().eval()
    for reading in scored().curve:
        rows = (
            fixed_sample(TRAIN, 10) if reading.split == "train_sample" else HELD[reading.split][reading.group]
        )
        total, right, count = 0.0, 0, 0
        for row in rows:
            logits = model(input_ids=torch.tensor([row.input_ids])).logits[0, :-1]
            labels = torch.tensor(row.labels[1:])
            wanted = labels != -100
            total += cross_entropy(logits[wanted], labels[wanted], reduction="sum").item()
            right += int((logits[wanted].argmax(-1) == labels[wanted]).sum())
            count += int(wanted.sum())
        assert reading.loss == pytest.approx(total / count, rel=1e-6)
        assert reading.accuracy == right / count
        assert (reading.targets, reading.examples) == (count, len(rows))


@pytest.mark.parametrize("batch_tokens", [1, 30, 100])
def test_the_size_of_batches_does_not_matter(batch_tokens: int) -> None:
    one, other = scored(), scored(batch_tokens)
    for left, right in zip(one.curve, other.curve, strict=True):
        assert left.loss == pytest.approx(right.loss, rel=1e-6)
        assert left.model_copy(update={"loss": 0}) == right.model_copy(update={"loss": 0})


def test_a_mean_of_batch_means_would_not_pass() -> None:
    """The planted fault: what `Trainer.evaluate` reports depends on the batch size."""
    items = [item for item in scored().items() if item["split"] == "test"]

    def mean_of_means(size: int) -> float:
        cuts = [items[start : start + size] for start in range(0, len(items), size)]
        means = [sum(i["loss_sum"] for i in cut) / sum(i["targets"] for i in cut) for cut in cuts]
        return sum(means) / len(means)

    assert abs(mean_of_means(1) - mean_of_means(9)) > 1e-3


def test_every_split_and_group_is_read_and_groups_can_be_named() -> None:
    places = [(reading.split, reading.group) for reading in scored().curve]
    assert places == [
        ("train_sample", "all"),
        ("validation", "same"),
        ("validation", "new"),
        ("test", "same"),
        ("test", "new"),
    ]
    limited = scored(groups=("new",)).curve
    assert [reading.group for reading in limited] == ["all", "new", "new"]
    assert [reading.split for reading in scored(groups=("new",)).curve if reading.group == "all"] == [
        "train_sample"
    ]


def test_no_sample_of_training_can_be_asked_for() -> None:
    scorer = Scorer(Heldout(train_sample=0), TRAIN, HELD)
    scorer.read(tiny.llama().eval(), 0, 0.0)
    assert {reading.split for reading in scorer.curve} == {"validation", "test"}


def test_the_sample_of_training_is_fixed() -> None:
    """Neither the order of the rows nor their number below the cut moves it."""
    assert fixed_sample(TRAIN[::-1], 10) == fixed_sample(TRAIN, 10)
    assert len(fixed_sample(TRAIN, 99)) == 30


def test_items_add_up_and_are_kept_of_base_best_and_last() -> None:
    scorer = Scorer(Heldout(train_sample=10), TRAIN, HELD)
    model = tiny.llama().eval()
    for step, scale in enumerate([1.0, 3.0, 0.5, 4.0, 2.0]):
        with torch.no_grad():
            model.model.norm.weight.fill_(scale)
        scorer.read(model, step, step / 2)
    best = scorer.best_steps()
    assert best == {"same": 2, "new": 2}
    assert {item["step"] for item in scorer.items()} == {0, 2, 4}
    score = scorer.score("trial", "score")
    assert (score.trial_id, score.score_id, len(score.curve)) == ("trial", "score", 25)
    for reading in score.curve:
        if reading.step in (0, 2, 4):
            members = [
                item
                for item in scorer.items()
                if (item["step"], item["split"], item["group"])
                == (reading.step, reading.split, reading.group)
            ]
            assert sum(item["loss_sum"] for item in members) / reading.targets == pytest.approx(reading.loss)
            assert sum(item["correct"] for item in members) / reading.targets == reading.accuracy
            assert [item["example_id"] for item in members][:1] != []
    pooled = [
        reading.loss * reading.targets
        for reading in score.curve
        if (reading.step, reading.split) == (2, "validation")
    ]
    targets = sum(row.targets for rows in HELD["validation"].values() for row in rows)
    assert scorer.pooled_validation_loss(2) == pytest.approx(sum(pooled) / targets)


def test_a_study_without_validation_has_no_best() -> None:
    scorer = Scorer(Heldout(train_sample=0), TRAIN, {"test": HELD["test"]})
    scorer.read(tiny.llama().eval(), 0, 0.0)
    scorer.read(tiny.llama().eval(), 5, 1.0)
    assert scorer.best_steps() == {}
    assert scorer.pooled_validation_loss(5) is None
    assert {item["step"] for item in scorer.items()} == {0, 5}


def test_nothing_scored_has_no_items() -> None:
    assert Scorer(Heldout(), TRAIN, HELD).items() == []
