"""When validation is best, what going on costs, and how much of the training sample is known by heart."""

from __future__ import annotations

from statistics import fmean
from typing import Any, Final

from paribus.compare import wording
from paribus.compare.findings import Findings
from paribus.compare.overfitting import Overfitting, curves_of, overfitting
from paribus.compare.readings import Curve
from paribus.compare.sheets import Column, Sheet

BY_HEART: Final = 0.99
"""Share of the training sample's targets predicted right from which it counts as memorised."""


def memorisation(findings: Findings) -> Sheet:
    """Show, for each cell whose overfitting is described, one row of means over seeds.

    The rise is validation loss at the end less its least; the epochs are those that were scored.
    """
    rows = [_row(found, findings) for found in overfitting(findings)]
    target = findings.metric.target
    columns = (
        Column("cell", "Cell"),
        Column("best", "At epoch", "estimate", "Least validation loss"),
        Column("least", "Loss", "estimate", "Least validation loss"),
        Column("rise", "Rise", "difference", "From there to the end"),
        Column("gap", "Test − train", "estimate", "At the end"),
        Column("right", f"Train {target}s right, %", "estimate", "At the end"),
        Column("by_heart", "Known from epoch"),
    )
    note = (
        f"Group {findings.metric.group}; losses in {findings.metric.loss_unit}. Known: from there on "
        f"{BY_HEART:.0%} of the training sample's {target}s are right, with noise off; in brackets the seeds "
        "that got that far."
    )
    return Sheet("memorisation", "Least validation loss and memorisation", columns, tuple(rows), note)


def _row(found: Overfitting, findings: Findings) -> dict[str, Any]:
    group, estimate = findings.metric.group, findings.rules.mean
    curves = curves_of(found.cell, findings)
    validated = [series for curve in curves if (series := _trained(curve, "validation", group))]
    trained = [series for curve in curves if (series := _trained(curve, "train_sample", None))]
    least = [min(series, key=lambda reading: reading.loss) for series in validated]
    rises = [series[-1].loss - best.loss for series, best in zip(validated, least, strict=True)]

    return {
        "cell": wording.cell_name(found.cell, findings.baseline),
        "best": estimate([reading.epoch for reading in least]),
        "least": estimate([reading.loss for reading in least]),
        "rise": estimate(rises),
        "gap": found.rows[-1].gap,
        "right": estimate([100 * series[-1].accuracy for series in trained]),
        "by_heart": _by_heart(trained),
    }


def _trained(curve: Curve, split: str, group: str | None) -> list[Any]:
    return [reading for reading in curve.series(split, group) if reading.step > 0]


def _by_heart(trained: list[list[Any]]) -> str | None:
    """Say from which epoch on the training sample is known, and in how many seeds."""
    if not trained:
        return None
    firsts = [next((r.epoch for r in series if r.accuracy >= BY_HEART), None) for series in trained]
    reached = [epoch for epoch in firsts if epoch is not None]
    count = f"[{len(reached)} of {len(trained)}]"
    return f"{wording.number(fmean(reached), 1)} {count}" if reached else f"never {count}"
