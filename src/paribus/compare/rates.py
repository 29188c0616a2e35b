"""How often each level finishes beside the baseline's: exact, and shown only where something failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paribus import statistics
from paribus.compare import wording
from paribus.compare.contrast import level_pairings
from paribus.compare.sheets import Column, Sheet
from paribus.statistics import Estimate, Interval

if TYPE_CHECKING:
    from paribus.compare.findings import Findings
    from paribus.plan.design import Cell

Share = tuple[int, int]
"""How many trials finished, of how many that have an outcome."""


@dataclass(frozen=True)
class Rate:
    """A level's share of finished trials less the baseline's, with the exact interval and Fisher's p."""

    axis: str
    level: str
    finished: Share
    against: Share
    interval: Interval | None
    fisher_p: float | None

    @property
    def difference(self) -> Estimate | None:
        """Return the difference of the two shares."""
        if not self.finished[1] or not self.against[1]:
            return None
        own, base = (k / n for k, n in (self.finished, self.against))
        return Estimate(self.finished[1], own - base, self.interval, self.fisher_p)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; what could not be computed is absent."""
        found: dict[str, Any] = {"axis": self.axis, "level": self.level, "fisher_p": self.fisher_p}
        for name, (finished, trials) in (("", self.finished), ("baseline_", self.against)):
            found |= {f"{name}finished": finished, f"{name}trials": trials}
        if self.difference and self.interval:
            found |= {"difference": self.difference.mean}
            found |= {"low": self.interval.low, "high": self.interval.high}
        return {key: value for key, value in found.items() if value is not None}


def rates(findings: Findings) -> list[Rate]:
    """Contrast each level's share of finished trials with the baseline's, where a trial of either failed."""
    found = []
    for (axis, level, _), pairing in level_pairings(findings.plan.cells).items():
        own, base = (_share([pair[side] for pair in pairing], findings) for side in (0, 1))
        if own[0] < own[1] or base[0] < base[1]:
            interval = statistics.share_difference(own, base, findings.rules.confidence)
            found.append(Rate(axis, level, own, base, interval, statistics.exact_shares(own, base)))
    return found


def _share(cells: Iterable[Cell], findings: Findings) -> Share:
    """Count trials with an outcome, each once; one that was not run yet is no failure."""
    trials = {k for cell in cells for k in cell.trials.values() if k in findings.recorded}
    return len(trials & findings.finished), len(trials)


def sheet(findings: Findings) -> Sheet | None:
    """Show the shares of finished trials by level; nothing where all finished."""
    found = rates(findings)
    if not found:
        return None
    rows = [
        {
            "axis": wording.axis_name(one.axis),
            "level": one.level,
            "finished": "{} of {}".format(*one.finished),
            "against": "{} of {}".format(*one.against),
            "difference": one.difference,
            "fisher_p": one.fisher_p,
        }
        for one in found
    ]
    columns = (
        Column("axis", "Axis"), Column("level", "Level", "level"), Column("finished", "Finished"),
        Column("against", "Baseline"), Column("difference", "Difference of shares", "difference"),
        Column("fisher_p", "p (Fisher)", "p"),
    )  # fmt: skip
    note = (
        "Exact intervals of the difference (Santner and Snell), p by Fisher's exact test, both uncorrected. "
        "Every difference in quality of these levels is conditional on what finished."
    )
    return Sheet("rates", "Does it finish as often?", columns, tuple(rows), note)
