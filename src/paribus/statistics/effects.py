"""Main effects and two-way interactions of a grid that may have holes, paired by seed.

Cells are named by their levels, one for each factor in a fixed order, and hold a value for each seed. An
effect is a signed sum of cells at each setting of the other factors, averaged over these settings within a
seed: the seeds, which are what repeats, are the n of its t interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from statistics import fmean

from paribus.statistics.intervals import Estimate, paired_difference

Place = tuple[str, ...]
Grid = Mapping[Place, Mapping[int, float]]


@dataclass(frozen=True)
class Effect:
    """What one or two factors' levels do against their base levels, over the settings of all the others.

    `contexts` counts these settings; `differences` has one value a seed.
    """

    factors: tuple[str, ...]
    levels: tuple[str, ...]
    against: tuple[str, ...]
    contexts: int
    differences: tuple[float, ...]
    estimate: Estimate | None


def main_effects(factors: Sequence[str], grid: Grid, base: Place, confidence: float = 0.95) -> list[Effect]:
    """Contrast the mean at each level with that at the base level, over the same settings of the others."""
    return [
        _effect(factors, grid, base, {position: level}, confidence)
        for position in range(len(factors))
        for level in _levels(grid, base, position)
    ]


def interactions(factors: Sequence[str], grid: Grid, base: Place, confidence: float = 0.95) -> list[Effect]:
    """Say how much a level's effect changes with another factor's: a difference of differences.

    (ab - a0b) - (ab0 - a0b0), with 0 for the base levels. Source: Cox and Reid 2000, The Theory of the
    Design of Experiments, section 5.2.
    """
    found = [
        _effect(factors, grid, base, {one: a, other: b}, confidence)
        for one, other in combinations(range(len(factors)), 2)
        for a, b in product(_levels(grid, base, one), _levels(grid, base, other))
    ]
    return [effect for effect in found if effect.contexts]


def _levels(grid: Grid, base: Place, position: int) -> list[str]:
    """Return the levels of a factor beside its base level, in the order of the grid."""
    return [level for level in dict.fromkeys(place[position] for place in grid) if level != base[position]]


def _effect(
    factors: Sequence[str], grid: Grid, base: Place, changed: Mapping[int, str], confidence: float
) -> Effect:
    contexts = [one for one in _contexts(grid, base, changed) if one]
    most = max(map(len, contexts), default=0)
    balanced = [one for one in contexts if len(one) == most]  # so that every seed averages the same cells
    seeds = sorted(set.intersection(*map(set, balanced))) if balanced else []
    differences = tuple(fmean(one[seed] for one in balanced) for seed in seeds)
    return Effect(
        factors=tuple(factors[position] for position in changed),
        levels=tuple(changed.values()),
        against=tuple(base[position] for position in changed),
        contexts=len(balanced) if seeds else 0,
        differences=differences,
        estimate=paired_difference(differences, confidence),
    )


def _contexts(grid: Grid, base: Place, changed: Mapping[int, str]) -> Iterator[dict[int, float]]:
    """Yield the effect by seed at each setting of the other factors that has all its corners."""
    for place in grid:
        if any(place[position] != base[position] for position in changed):
            continue
        corners = []
        for chosen in product((False, True), repeat=len(changed)):
            levels = {p: level for (p, level), taken in zip(changed.items(), chosen, strict=True) if taken}
            corner = tuple(levels.get(position, level) for position, level in enumerate(place))
            corners.append(((-1) ** (len(changed) - sum(chosen)), grid.get(corner, {})))
        shared = set.intersection(*(set(values) for _, values in corners))
        yield {seed: sum(sign * values[seed] for sign, values in corners) for seed in shared}
