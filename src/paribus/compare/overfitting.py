"""Does training overfit: train, validation and test loss by epoch, and three verdicts on their shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from paribus import statistics
from paribus.compare.readings import SPLITS, Curve

if TYPE_CHECKING:
    from paribus.compare.contrast import Rules
    from paribus.compare.findings import Findings
    from paribus.plan.design import Cell

FEWEST = 3
"""Readings that a shape needs; the untrained model is one point more."""


@dataclass(frozen=True)
class Shape:
    """How many of `n` curves show one pattern of overfitting."""

    pattern: str
    k: int
    n: int

    @property
    def holds(self) -> bool | None:
        """Say whether every curve shows it; nothing is known of no curve."""
        return self.k == self.n if self.n else None

    def __str__(self) -> str:
        return f"{self.pattern} in {self.k} of {self.n} seeds"


@dataclass(frozen=True)
class Row:
    """The losses of one cell at one epoch, by split, over seeds; epoch 0 is the base model."""

    epoch: float
    losses: Mapping[str, statistics.Estimate]
    gap: statistics.Estimate | None


@dataclass(frozen=True)
class Overfitting:
    """One cell's losses by epoch and the shapes of its curves."""

    cell: Cell
    rows: tuple[Row, ...]
    shapes: tuple[Shape, ...]


def overfitting(findings: Findings) -> list[Overfitting]:
    """Describe the baseline and each cell of another tuning, data or training setting.

    Axes of the other techniques stay at the baseline's level.
    """
    base = findings.baseline
    if base is None:
        return []
    chosen = [
        cell
        for cell in findings.plan.cells
        if all(
            axis == "tuning" or axis.startswith(("data.", "training.")) or level == base.coordinates[axis]
            for axis, level in cell.coordinates.items()
        )
    ]
    ordered = sorted(chosen, key=lambda cell: not cell.is_baseline)
    return [_of_cell(cell, findings) for cell in ordered if curves_of(cell, findings)]


def shapes(curves: Iterable[Curve], group: str) -> tuple[Shape, ...]:
    """Count the curves whose train loss falls throughout, whose validation is U-shaped, whose gap grows.

    All three are judged after training began, with noise off: *falls* means strictly from each reading to the
    next; *U-shaped* that the least validation loss is at neither the first nor the last and the last is above
    it; *grows* that validation less train rises at each. A curve of under three readings has no shape, and
    one without a training sample neither a fall nor a gap: it is not counted.
    """
    known = [curve for curve in curves if len(curve.series("validation", group)) > FEWEST]
    falls, turns, grows = [], [], []
    for curve in known:
        train = [r.loss for r in curve.series("train_sample") if r.step > 0]
        validation = [r.loss for r in curve.series("validation", group) if r.step > 0]
        turns.append(_is_u(validation))
        if train:
            falls.append(_falls(train))
            grows.append(_falls([t - v for t, v in zip(train, validation, strict=True)]))
    found = {
        "train loss falls throughout": falls,
        "validation loss is U-shaped": turns,
        "the gap grows throughout": grows,
    }
    return tuple(Shape(name, sum(shown), len(shown)) for name, shown in found.items())


def _of_cell(cell: Cell, findings: Findings) -> Overfitting:
    curves, group = curves_of(cell, findings), findings.metric.group
    epochs = sorted({epoch for curve in curves for epoch in curve.epochs().values()})
    rows = tuple(_row(epoch, curves, group, findings.rules) for epoch in epochs)
    return Overfitting(cell, rows, shapes(curves, group))


def curves_of(cell: Cell, findings: Findings) -> list[Curve]:
    """Return the curves of a cell's finished trials, in the order of its seeds."""
    return [findings.curves[k] for k in cell.trials.values() if k in findings.curves]


def _row(epoch: float, curves: Sequence[Curve], group: str, rules: Rules) -> Row:
    losses, gaps = {}, []
    for split in SPLITS:
        read = [loss for curve in curves if (loss := _at(curve, split, group, epoch)) is not None]
        estimate = rules.mean(read)
        if estimate:
            losses[split] = estimate
    for curve in curves:
        train, test = _at(curve, "train_sample", group, epoch), _at(curve, "test", group, epoch)
        if train is not None and test is not None:
            gaps.append(test - train)
    return Row(epoch, losses, rules.mean(gaps))


def _at(curve: Curve, split: str, group: str, epoch: float) -> float | None:
    series = curve.series(split, None if split == "train_sample" else group)
    return next((reading.loss for reading in series if reading.epoch == epoch), None)


def _falls(series: Sequence[float]) -> bool:
    return len(series) > 1 and all(after < before for before, after in pairwise(series))


def _is_u(series: Sequence[float]) -> bool:
    lowest = min(range(len(series)), key=lambda i: series[i], default=0)
    return 0 < lowest < len(series) - 1 and series[-1] > series[lowest]
