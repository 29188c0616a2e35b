"""Planned power: what a study will be able to see, from a spread that is expected or was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from paribus import statistics
from paribus.compare import wording
from paribus.compare.contrast import level_pairings
from paribus.compare.findings import Findings
from paribus.compare.readings import Metric
from paribus.compare.seeing import POWER, ErrorAt, error_at, seeds_for, spread
from paribus.record.store import Store

if TYPE_CHECKING:
    from paribus.plan.design import Plan

UNKNOWN = (
    "Planned power is not known: say how much a paired difference varies over seeds, "
    "compare: {{expected_sd: ...}} in {unit}, or run the first seeds."
)
ADAPTIVE = "Power is not planned: seeds are added until all is decided."


@dataclass(frozen=True)
class AxisPower:
    """What an axis can show: levels tested together, seeds planned, and what follows from the widest spread.

    `sd` is of the paired differences over seeds, `smallest_difference` is found with 80 % power at alpha over
    the levels, `seeds_for_margin` show equivalence if there is no difference (absent without a margin, and
    where 10,000 would not do).
    """

    axis: str
    levels: int
    seeds: int
    sd: float
    smallest_difference: float
    seeds_for_margin: int | None


@dataclass(frozen=True)
class Planned:
    """The power of every axis, and where the spread comes from."""

    source: str
    axes: tuple[AxisPower, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"source": self.source, "axes": [asdict(one) for one in self.axes]}


def planned_power(plan: Plan, store: Store) -> Planned | None:
    """Work out what a study can see, from its own `expected_sd`, its results, or reference results.

    None where no spread is known, and where seeds are added until all is decided.
    """
    if plan.study.repeat.looks:
        return None
    if plan.study.compare.expected_sd is not None:
        return Planned("compare.expected_sd", _expected(plan, plan.study.compare.expected_sd))
    beside = Store(store.root.parent / "reference" / store.root.name)
    for source in (store, beside):
        found = _recorded(plan, source) if source.root.is_dir() else ()
        if found:
            return Planned(str(source.root), found)
    return None


def lines(plan: Plan, power: Planned | None) -> Iterator[str]:
    """Say it in sentences, axes with the same numbers together; or how to make it known."""
    if power is None:
        unit = Metric.parse(plan.study.compare.metric, plan.study.task).unit
        yield ADAPTIVE if plan.study.repeat.looks else UNKNOWN.format(unit=unit)
        return
    yield f"Planned power, {POWER}, from the spread in {power.source}:"
    together: dict[tuple[Any, ...], list[str]] = {}
    for one in power.axes:
        key = (one.seeds, wording.size(one.smallest_difference), one.seeds_for_margin)
        together.setdefault(key, []).append(wording.axis_name(one.axis))
    for (seeds, smallest, enough), axes in together.items():
        yield f"  {wording.listed(axes)}: {_sentence(plan, seeds, smallest, enough)}"


def _sentence(plan: Plan, seeds: int, smallest: str, enough: int | None) -> str:
    said = f"with {seeds} seeds a difference of {smallest} can be seen"
    margin = plan.study.compare.margin
    if margin is None:
        return said
    many = f"{enough:,} seeds" if enough is not None else "more than 10,000 seeds"
    return f"{said}; equivalence within ±{margin:g} needs {many}"


def _expected(plan: Plan, sd: float) -> tuple[AxisPower, ...]:
    """Take one spread for every contrast."""
    planned = _seeds(plan)
    return tuple(
        _axis(plan, axis, _family(plan, planned, axis), [(seeds, spread(sd)) for seeds in levels.values()])
        for axis, levels in planned.items()
    )


def _recorded(plan: Plan, store: Store) -> tuple[AxisPower, ...]:
    """Take each contrast's own spread, as far as it is recorded and there is any."""
    findings, planned, found = Findings(plan, store), _seeds(plan), []
    for axis, levels in planned.items():
        own = [c for c in findings.primary_contrasts if c.axis == axis and c.level in levels]
        varying = [c for c in own if c.difference and c.difference.error]
        known = [(levels[c.level], at) for c in varying if (at := error_at(c, findings.rules.estimand))]
        if known:
            found.append(_axis(plan, axis, _family(plan, planned, axis), known))
    return tuple(found)


def _axis(plan: Plan, axis: str, family: int, errors: Sequence[tuple[int, ErrorAt]]) -> AxisPower:
    """Say what the least certain of an axis's contrasts can show, each with its planned seeds."""
    compare = plan.study.compare
    alpha, margin = 1 - compare.confidence, compare.margin
    sizes = []
    for seeds, at in errors:
        error, freedom = at(seeds)
        smallest = error * statistics.smallest_shift(freedom, alpha / family)
        sizes.append((smallest, seeds, error * sqrt(seeds), at))
    smallest, seeds, sd, at = max(sizes, key=lambda size: size[0])
    enough = None if margin is None else seeds_for(margin, at, alpha)
    return AxisPower(axis, family, seeds, sd, smallest, enough)


def _seeds(plan: Plan) -> dict[str, dict[str, int]]:
    """Count the planned pairs of seeds of each level that is no control: axis -> level -> seeds, from two."""
    found: dict[str, dict[str, int]] = {}
    for (axis, level, _), pairing in level_pairings(plan.cells).items():
        if not all(cell.is_control for cell, _ in pairing):
            shared = {seed for cell, other in pairing for seed in cell.trials if seed in other.trials}
            if len(shared) > 1:
                found.setdefault(axis, {})[level] = len(shared)
    return found


def _family(plan: Plan, planned: Mapping[str, Mapping[str, int]], axis: str) -> int:
    """Count the contrasts that p is adjusted over with those of an axis."""
    return sum(map(len, planned.values())) if plan.study.compare.family == "study" else len(planned[axis])
