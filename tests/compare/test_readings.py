"""Where on a curve a number is read, worked out by hand on a curve of four points."""

from __future__ import annotations

from typing import Any

import pytest

from paribus.compare.readings import Curve, Metric, Point, common_train_loss, values
from paribus.errors import StudyError
from paribus.record.result import Reading

TRAIN, VALIDATION, TEST = [5.0, 3.0, 1.0, 0.5], [5.1, 2.0, 1.5, 1.8], [5.2, 2.2, 1.6, 2.0]
LOSS, GAP = Metric("test", "g", "loss"), Metric("test", "g", "gap")


def curve(train: list[float] | None = None) -> Curve:
    splits: dict[Any, list[float]] = {"train_sample": train or TRAIN, "validation": VALIDATION, "test": TEST}
    return Curve(
        Reading(
            step=10 * i, epoch=float(i), split=split, group="all" if split == "train_sample" else "g",
            loss=loss, accuracy=1 - loss / 10, targets=4, examples=2,
        )
        for split, losses in splits.items()
        for i, loss in reversed(list(enumerate(losses)))
    )  # fmt: skip


def read(at: Any, metric: Metric = LOSS, level: float | None = None) -> float | None:
    return values({"t": curve()}, metric, at, level).get("t")


def test_base_last_and_best_validation() -> None:
    assert (read("base"), read("last"), read("best_validation")) == (5.2, 2.0, 1.6)


def test_best_validation_is_chosen_by_validation_and_never_the_untrained_model() -> None:
    worse = [Reading(step=s, epoch=float(s), split="validation", group="g", loss=loss, accuracy=0.1,
                     targets=1, examples=1) for s, loss in enumerate([1.0, 3.0, 2.0])]  # fmt: skip
    assert Curve(worse).place("best_validation", "g") == Point(2, 2.0)


def test_equal_train_loss_is_interpolated_on_both_curves() -> None:
    place = curve().place("equal_train_loss", "g", 2.0)
    assert place == Point(15.0, 1.5)
    assert read("equal_train_loss", level=2.0) == pytest.approx(1.9)
    assert read("equal_train_loss", GAP, 2.0) == pytest.approx(-0.1)


def test_a_train_loss_never_reached_or_held_from_the_start_gives_no_reading() -> None:
    assert read("equal_train_loss", level=0.4) is None
    assert read("equal_train_loss", level=5.0) is None
    assert read("equal_train_loss", level=None) is None


def test_the_gap_is_the_split_less_the_training_sample() -> None:
    assert read("last", GAP) == pytest.approx(1.5)


def test_the_common_level_is_the_highest_of_the_lowest() -> None:
    assert common_train_loss([curve(), curve([5.0, 3.0, 2.5, 2.6])]) == 2.5
    assert common_train_loss([curve(), Curve([])]) is None
    assert common_train_loss([]) is None


def test_a_curve_without_points_has_no_readings() -> None:
    for at in ("base", "last", "best_validation", "equal_train_loss"):
        assert Curve([]).place(at, "g", 1.0) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("loss", "form <split>"),
        ("test.loss", "form <split>"),
        ("dev.g.loss", "form <split>"),
        ("test.g.los", "Did you mean 'loss'"),
    ],
)
def test_a_metric_that_is_none_is_refused_with_the_rule(name: str, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        Metric.parse(name)


def test_a_group_may_contain_dots_and_accuracy_is_better_when_higher() -> None:
    metric = Metric.parse("test.new.wording.accuracy")
    assert (metric.split, metric.group, str(metric)) == ("test", "new.wording", "test.new.wording.accuracy")
    assert not metric.lower_is_better
