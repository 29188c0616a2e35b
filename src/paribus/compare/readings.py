"""Where on a training curve a number is read: before training, at its end, at its best, at equal train loss.

A metric is named `<split>.<group>.<quantity>`. Quantities: `loss` (nats a target token, lower is better),
`accuracy` (share of target tokens predicted right, higher is better) and `gap` (the split's loss less the
loss on the training sample, both with noise off; lower is better). The first two are of the trained weights
computed in fp32; `loss_as_trained` and `accuracy_as_trained` of the model that computes as in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from paribus.errors import StudyError, nearest

if TYPE_CHECKING:
    from paribus.plan.trial import Job
    from paribus.record.result import HeldoutScore, Reading

At = Literal["base", "last", "best_validation", "equal_train_loss"]
READINGS: tuple[At, ...] = get_args(At)
TRAINED: tuple[At, ...] = ("last", "best_validation", "equal_train_loss")
SPLITS = ("train_sample", "validation", "test")
"""What is scored at every point of a curve."""
QUANTITIES = {
    "loss": "nats per token",
    "accuracy": "share of tokens",
    "gap": "nats per token",
    "loss_as_trained": "nats per token",
    "accuracy_as_trained": "share of tokens",
}


@dataclass(frozen=True)
class Metric:
    """One held-out quantity of one split and group; `target` is what is scored, a token or an example."""

    split: str
    group: str
    quantity: str
    target: str = field(default="token", compare=False)

    @staticmethod
    def parse(name: str, task: str = "instruction") -> Metric:
        """Read `test.same_wording.loss`; a group may itself contain dots. Classes are scored by example."""
        split, _, rest = name.partition(".")
        group, _, quantity = rest.rpartition(".")
        if not group or split not in ("train_sample", "validation", "test"):
            raise StudyError(
                f"metric {name!r} is not of the form <split>.<group>.<quantity>",
                way_out="For example test.same_wording.loss; splits: train_sample, validation, test.",
            )
        if quantity not in QUANTITIES:
            raise StudyError(
                f"metric {name!r}: no quantity {quantity!r}.", way_out=nearest(quantity, QUANTITIES)
            )
        return Metric(split, group, quantity, "example" if task == "classification" else "token")

    @property
    def lower_is_better(self) -> bool:
        """Say which direction is good: a lower loss or gap, a higher accuracy."""
        return not self.quantity.startswith("accuracy")

    @property
    def unit(self) -> str:
        """Name the unit its values and differences are in."""
        return QUANTITIES[self.quantity].replace("token", self.target)

    @property
    def loss_unit(self) -> str:
        """Name the unit of losses beside it."""
        return QUANTITIES["loss"].replace("token", self.target)

    def __str__(self) -> str:
        return f"{self.split}.{self.group}.{self.quantity}"


@dataclass(frozen=True)
class Point:
    """A place on a training curve; `step` may lie between two scored steps."""

    step: float
    epoch: float


class Curve:
    """The held-out scores of one trial along training, the base model at step 0."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._series: dict[tuple[str, str], dict[int, Reading]] = {}
        for reading in sorted(readings, key=lambda reading: reading.step):
            self._series.setdefault((reading.split, reading.group), {})[reading.step] = reading

    @staticmethod
    def of(scores: Iterable[HeldoutScore]) -> Curve:
        """Join everything that was scored of one trial."""
        return Curve(reading for score in scores for reading in score.curve)

    def groups(self, split: str) -> list[str]:
        """Name the groups of a split, sorted."""
        return sorted(group for name, group in self._series if name == split)

    def series(self, split: str, group: str | None = None) -> list[Reading]:
        """Return a split's readings in step order; without a group the only (or first) one's."""
        groups = self.groups(split)
        chosen = group if group is not None else (groups[0] if groups else "")
        return list(self._series.get((split, chosen), {}).values())

    def epochs(self) -> dict[int, float]:
        """Return the epoch of every scored step."""
        return {step: reading.epoch for series in self._series.values() for step, reading in series.items()}

    def train_loss_reached(self) -> float | None:
        """Return the lowest loss on the training sample after training began."""
        return min((r.loss for r in self.series("train_sample") if r.step > 0), default=None)

    def place(self, at: At, group: str, level: float | None = None) -> Point | None:
        """Find a reading's place; absent where the curve has none, such as a train loss never reached."""
        steps = self.epochs()
        if not steps:
            return None
        if at == "base":
            return Point(0, 0.0) if 0 in steps else None
        if at == "last":
            last = max(steps)
            return Point(last, steps[last]) if last > 0 else None
        if at == "best_validation":
            trained = [r for r in self.series("validation", group) if r.step > 0]
            best = min(trained, key=lambda r: r.loss, default=None)
            return Point(best.step, best.epoch) if best else None
        return self._crossing(level)

    def value(self, metric: Metric, point: Point) -> float | None:
        """Return a metric at a place, interpolated linearly in the step between two scored steps."""
        if metric.quantity == "gap":
            heldout = self.value(Metric(metric.split, metric.group, "loss"), point)
            train = _interpolated(self.series("train_sample"), "loss", point.step)
            return None if heldout is None or train is None else heldout - train
        group = None if metric.split == "train_sample" else metric.group
        return _interpolated(self.series(metric.split, group), metric.quantity, point.step)

    def _crossing(self, level: float | None) -> Point | None:
        """Find the first place where the train-sample loss falls to a level."""
        series = self.series("train_sample")
        if level is None or not series or series[0].loss <= level:
            return None
        for before, after in pairwise(series):
            if after.loss <= level:
                share = (before.loss - level) / (before.loss - after.loss)
                return Point(
                    before.step + share * (after.step - before.step),
                    before.epoch + share * (after.epoch - before.epoch),
                )
        return None


def planned_scores(job: Job, scores: Iterable[HeldoutScore]) -> list[HeldoutScore]:
    """Return the scores that a study asks for now; earlier ones, on other items, are left out."""
    wanted = {job.trial.score_id(score) for score in job.scores}
    return [score for score in scores if score.score_id in wanted]


def common_train_loss(curves: Iterable[Curve]) -> float | None:
    """Return the lowest train-sample loss that every curve reaches; absent for no curve."""
    reached = [curve.train_loss_reached() for curve in curves]
    known = [loss for loss in reached if loss is not None]
    return max(known) if known and len(known) == len(reached) else None


def values(
    curves: Mapping[str, Curve], metric: Metric, at: At, level: float | None, group: str | None = None
) -> dict[str, float]:
    """Read one metric at one place of every curve, by trial; trials without that place are absent.

    `group` is the validation group that chooses the best epoch, the metric's own unless given.
    """
    found: dict[str, float] = {}
    for trial_id, curve in curves.items():
        point = curve.place(at, group or metric.group, level)
        value = curve.value(metric, point) if point else None
        if value is not None:
            found[trial_id] = value
    return found


def _interpolated(series: list[Reading], quantity: str, step: float) -> float | None:
    if not series or not series[0].step <= step <= series[-1].step or getattr(series[0], quantity) is None:
        return None
    for before, after in zip(series, [*series[1:], series[-1]], strict=True):
        if before.step == step:
            return float(getattr(before, quantity))
        if before.step < step < after.step:
            share = (step - before.step) / (after.step - before.step)
            low, high = getattr(before, quantity), getattr(after, quantity)
            return float(low + share * (high - low))
    return float(getattr(series[-1], quantity))
