"""What techniques do together: main effects and two-way interactions of a grid, paired by seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paribus import statistics
from paribus.compare import seeing, wording
from paribus.compare.sheets import Column, Sheet
from paribus.plan.levels import ABSENT

if TYPE_CHECKING:
    from paribus.compare.findings import Findings
    from paribus.statistics import Effect, Estimate


@dataclass(frozen=True)
class Combined:
    """An effect of one level, or an interaction of two, with p over its family and what could have been seen.

    `conditional`: a planned cell or seed of it did not finish, and its setting is left out.
    """

    effect: Effect
    estimate: Estimate | None
    holm_p: float | None
    smallest: float | None
    conditional: bool

    @property
    def axes(self) -> tuple[str, ...]:
        """Name its axis, or its two."""
        return self.effect.factors

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; what could not be computed is absent."""
        found: dict[str, Any] = {
            "axes": list(self.axes), "levels": list(self.effect.levels),
            "baseline": list(self.effect.against), "contexts": self.effect.contexts,
            "conditional": self.conditional, "p_holm": self.holm_p, "smallest_difference": self.smallest,
        }  # fmt: skip
        if self.estimate:
            found |= {"n": self.estimate.n, "difference": self.estimate.mean, "p": self.estimate.p}
        if self.estimate and self.estimate.interval:
            found |= {"low": self.estimate.interval.low, "high": self.estimate.interval.high}
        return {key: value for key, value in found.items() if value is not None}


def main_effects(findings: Findings) -> list[Combined]:
    """Return each level's effect over all settings of the other axes; nothing where the design is no grid."""
    return _combined(findings, statistics.main_effects)


def interactions(findings: Findings) -> list[Combined]:
    """Return how much each level's effect changes with another axis's; all of them are one family."""
    return _combined(findings, statistics.interactions)


def _combined(findings: Findings, effects: Any) -> list[Combined]:
    base = findings.baseline
    if findings.study.design != "grid" or len(findings.axes) < 2 or base is None:
        return []
    cells = [cell for cell in findings.plan.cells if not cell.is_control]
    values, home = findings.values(findings.primary), tuple(base.coordinates.values())
    planned = {tuple(c.coordinates.values()): dict.fromkeys(c.trials, 0.0) for c in cells}
    grid = {
        tuple(c.coordinates.values()): {seed: values[k] for seed, k in c.trials.items() if k in values}
        for c in cells
    }
    whole = {_key(one): _size(one) for one in effects(findings.axes, planned, home)}
    found = [one for one in effects(findings.axes, grid, home) if one.contexts and ABSENT not in one.levels]
    incomplete = [_size(one) != whole[_key(one)] for one in found]
    return _judged(findings, found, incomplete)


def _key(effect: Effect) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return effect.factors, effect.levels


def _size(effect: Effect) -> tuple[int, int]:
    return effect.contexts, len(effect.differences)


def _judged(findings: Findings, found: Sequence[Effect], incomplete: Sequence[bool]) -> list[Combined]:
    """Adjust p over each family: an axis or the study for main effects, all interactions together."""
    rules = findings.rules
    estimates = [rules.difference(one.differences) for one in found]
    by_axis = rules.family == "axis"
    families = [one.factors[0] if by_axis and len(one.factors) == 1 else "all" for one in found]
    adjusted = statistics.holm_within(families, [e.p if e else None for e in estimates])
    tested = {family: sum(families[i] == family for i in adjusted) for family in families}
    alphas = [rules.alpha / max(1, tested[family]) for family in families]
    return [
        Combined(one, e, adjusted.get(i), seeing.smallest(e, alphas[i]), incomplete[i])
        for i, (one, e) in enumerate(zip(found, estimates, strict=True))
    ]


def sheet(findings: Findings) -> Sheet | None:
    """Show main effects and interactions in one table; nothing where the design is no grid."""
    together = interactions(findings)
    if not together:
        return None
    rows = [
        *(_row(one, "Alone: averaged over the other axes") for one in main_effects(findings)),
        *(_row(one, "Together: how much the effect of the one changes beside the other") for one in together),
    ]
    columns = (
        Column("level", "Level"), Column("with", "Beside"),
        Column("difference", "Effect", "difference"), Column("holm_p", "p (Holm)", "p"),
        Column("smallest", "Could see", "size"),
    )  # fmt: skip
    metric = findings.metric
    note = (
        f"In {metric.unit} of {metric} at {wording.READING_NAMES[findings.primary]}. Together: a difference "
        "of differences, zero where effects add up, averaged over the remaining axes; Holm over all "
        f"{len(together)}. Intervals over seeds." + seeing.note(findings.rules, False)
    )
    return Sheet("together", "Alone and together", columns, tuple(rows), note)


def _row(one: Combined, group: str) -> dict[str, Any]:
    names = [
        f"{wording.axis_name(axis)} {wording.level_name(level)}"
        for axis, level in zip(one.axes, one.effect.levels, strict=True)
    ]
    return {
        "group": group,
        "level": names[0] + (" *" if one.conditional else ""),
        "with": names[1] if len(names) > 1 else None,
        "difference": one.estimate,
        "holm_p": one.holm_p,
        "smallest": one.smallest,
    }


def summary(findings: Findings) -> tuple[str, tuple[str, ...]] | None:
    """Say in a sentence whether effects add up, and list the interactions that are told from zero."""
    found = interactions(findings)
    if not found:
        return None
    shown = [one for one in found if one.holm_p is not None and one.holm_p < findings.rules.alpha]
    if shown:
        return "Effects that change when techniques are combined:", tuple(map(_described, shown))
    return f"None of the {len(found)} two-way interactions is told from zero{_range(found)}.", ()


def _range(found: Iterable[Combined]) -> str:
    known = sorted(one.smallest for one in found if one.smallest is not None)
    if not known:
        return ""
    low, high = wording.size(known[0]), wording.size(known[-1])
    return f"; the smallest that could have been seen are {low} to {high}"


def _described(one: Combined) -> str:
    levels = zip(one.axes, one.effect.levels, strict=True)
    names = " with ".join(f"{wording.axis_name(axis)} {wording.level_name(level)}" for axis, level in levels)
    assert one.estimate is not None and one.holm_p is not None
    return f"{names}: {wording.difference(one.estimate)}, p {wording.p_value(one.holm_p)}."
