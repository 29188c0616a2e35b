"""Each level against the baseline's, all else equal, paired by seed.

A level is compared in every *context* (one choice of everything else that varies) where both it and the
baseline's level were planned. Within a seed the differences of all contexts are averaged first, so that the
seeds, which are what repeats, are the n of every interval. A trial that stands on both sides, or that did
not finish, gives no pair: such an arm is marked conditional and is never called equivalent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from paribus import statistics
from paribus.compare.items import crossed, estimated
from paribus.compare.readings import At, Metric
from paribus.plan.levels import ABSENT
from paribus.statistics.sequential import Looks

if TYPE_CHECKING:
    from paribus.compare.guard import Flag
    from paribus.compare.items import Item
    from paribus.plan.design import Cell

Verdict = Literal["better", "worse", "negligible", "equivalent", "undecided", "one pair", "no pair"]
"""`negligible`: a real difference, and shown to be smaller than the margin."""


@dataclass(frozen=True)
class Rules:
    """What a study declared before it ran; the margin, in the metric's unit, may be absent.

    `family` is `axis` or `study`: the set of contrasts that p is adjusted over. `looks` are those of a study
    that adds seeds until all is decided: its intervals and p values hold however often it was looked at.
    `estimand` says whether intervals speak of new seeds alone or of new items as well.
    """

    margin: float | None
    confidence: float = 0.95
    family: str = "axis"
    looks: Looks | None = None
    estimand: statistics.Estimand = "new_seeds_these_items"

    @property
    def alpha(self) -> float:
        """Return the error rate that goes with the confidence."""
        return 1 - self.confidence

    def mean(self, values: Sequence[float]) -> statistics.Estimate | None:
        """Estimate a mean with the interval that this study's repeats allow."""
        if self.looks:
            return self.looks.mean(values, self.confidence)
        return statistics.mean_interval(values, self.confidence)

    def difference(self, differences: Sequence[float]) -> statistics.Estimate | None:
        """Estimate a mean of paired differences with its interval and p."""
        if self.looks:
            return self.looks.difference(differences, self.confidence)
        return statistics.paired_difference(differences, self.confidence)

    def equality(self, differences: Sequence[float]) -> float | None:
        """Return the p of a difference beyond the margin; absent where no margin is declared."""
        if self.margin is None:
            return None
        return (self.looks.tost if self.looks else statistics.tost)(differences, self.margin)


@dataclass(frozen=True)
class Arm:
    """One side of a contrast: how many of its planned trials finished, and which trials gave a value."""

    planned: int
    finished: int
    trials: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Say whether every planned trial of this side finished."""
        return self.planned == self.finished


@dataclass(frozen=True)
class Contrast:
    """A level less the baseline's level in one metric at one reading.

    `axis` is absent where two cells differ in several axes. `family` names the set that `holm_p` was adjusted
    over, `pairs` counts differences before averaging within a seed, `contexts` choices of everything else.
    A control, declared to harm, is in a family of its own: it tests the test, not the question. `matched` are
    the pairs, (treated, untreated); `flags` say in what they are not a fair comparison, once it was checked.
    `tested` counts the contrasts of its family that have a p, `parts` are the variances of seeds and items.
    """

    axis: str | None
    level: str
    baseline: str
    metric: Metric
    at: At
    arm: Arm
    against: Arm
    pairs: int
    contexts: int
    difference: statistics.Estimate | None = None
    differences: tuple[float, ...] = ()
    family: str = ""
    holm_p: float | None = None
    tost_p: float | None = None
    verdict: Verdict = "no pair"
    within_margin: bool = False
    is_control: bool = False
    matched: tuple[tuple[str, str], ...] = ()
    flags: tuple[Flag, ...] = ()
    tested: int = 0
    parts: statistics.Components | None = None

    @property
    def conditional(self) -> bool:
        """Say whether the difference holds only given that a trial finished, because some did not."""
        return not (self.arm.complete and self.against.complete)

    @property
    def unfair(self) -> str:
        """Say in what its sides differ beside what is varied; empty where they do not."""
        return " ".join(flag.sentence for flag in self.flags)


@dataclass(frozen=True)
class Read:
    """One metric read at one place of every finished trial, with the cells that the trials stand in.

    `items` has each trial's single items, where the study speaks of new ones and they are recorded.
    """

    cells: Sequence[Cell]
    values: Mapping[str, float]
    finished: set[str]
    metric: Metric
    at: At
    rules: Rules
    items: Mapping[str, Mapping[Item, float]] | None = None


Pairing = list[tuple["Cell", "Cell"]]


def level_pairings(cells: Sequence[Cell]) -> dict[tuple[str, str, str], Pairing]:
    """Match cells that differ in one axis: (axis, level, baseline's level) -> pairs, all else equal."""
    base = baseline_of(cells)
    if base is None:
        return {}
    found: dict[tuple[str, str, str], Pairing] = {}
    for cell in cells:
        for axis, level in cell.coordinates.items():
            home = base.coordinates[axis]
            partner = _partner(cell, axis, home, cells) if level != home else None
            if partner is not None:
                found.setdefault((axis, level, home), []).append((cell, partner))
    order = {axis: position for position, axis in enumerate(base.coordinates)}
    return dict(sorted(found.items(), key=lambda item: order[item[0][0]]))


def _partner(cell: Cell, axis: str, home: str, cells: Sequence[Cell]) -> Cell | None:
    """Find the cell that has the baseline's level on one axis and is equal wherever both have a level."""
    for other in cells:
        pairs = ((name, level, other.coordinates[name]) for name, level in cell.coordinates.items())
        if all(b == home if name == axis else a == b or ABSENT in (a, b) for name, a, b in pairs):
            return other
    return None


def baseline_of(cells: Iterable[Cell]) -> Cell | None:
    """Return the cell that everything is compared with."""
    return next((cell for cell in cells if cell.is_baseline), None)


def level_contrasts(read: Read) -> list[Contrast]:
    """Contrast every level of every axis with the baseline's, averaged over everything else that varies."""
    made = [
        contrast_of(read, axis, (level, home), pairing)
        for (axis, level, home), pairing in level_pairings(read.cells).items()
    ]
    return judged(made, read.rules)


def cell_contrasts(read: Read) -> dict[tuple[str, ...], Contrast]:
    """Contrast every cell with the baseline cell, by its coordinates; in a grid all are one family."""
    base = baseline_of(read.cells)
    others = [cell for cell in read.cells if cell is not base] if base else []
    made = one_family(
        [contrast_of(read, *changed(cell, base), [_beside(cell, base, read)]) for cell in others if base]
    )
    places = [tuple(cell.coordinates.values()) for cell in others]
    return dict(zip(places, judged(made, read.rules), strict=True))


def one_family(cells: list[Contrast]) -> list[Contrast]:
    """Put contrasts of cells in one family where any two cells differ in several axes."""
    if all(contrast.axis for contrast in cells):
        return cells
    return [c if c.is_control or c.family == "study" else replace(c, family="cells") for c in cells]


def _beside(cell: Cell, base: Cell, read: Read) -> tuple[Cell, Cell]:
    """Pair a cell with the baseline, which in an adaptive study may have been given more seeds."""
    seeds = cell.trials if read.rules.looks else base.trials
    return cell, replace(base, trials={seed: k for seed, k in base.trials.items() if seed in seeds})


def changed(cell: Cell, base: Cell) -> tuple[str | None, tuple[str, str]]:
    """Name what differs: the axis where it is only one, the cell's levels and the baseline's."""
    places = [(axis, level, base.coordinates[axis]) for axis, level in cell.coordinates.items()]
    different = [axis for axis, level, home in places if level != home]
    changed = [a for a, level, home in places if level != home and ABSENT not in (level, home)] or different
    level = ", ".join(cell.coordinates[axis] for axis in changed)
    home = ", ".join(base.coordinates[axis] for axis in changed)
    return (changed[0] if len(changed) == 1 else None), (level, home)


def contrast_of(read: Read, axis: str | None, levels: tuple[str, str], pairing: Pairing) -> Contrast:
    """Pair by seed within each context, average within a seed, and estimate over seeds."""
    by_seed: dict[int, list[float]] = {}
    pairs: dict[str, tuple[int, str, str]] = {}
    for seed, treated, untreated in _pairs(pairing):
        if treated in read.values and untreated in read.values and treated not in pairs:
            by_seed.setdefault(seed, []).append(read.values[treated] - read.values[untreated])
            pairs[treated] = seed, treated, untreated
    used = {treated: untreated for _, treated, untreated in pairs.values()}
    differences = tuple(fmean(found) for _, found in sorted(by_seed.items()))
    found = estimated(read.rules, differences, crossed(read.items, pairs.values()) if read.items else None)
    arm = _arm([cell for cell, _ in pairing], read.finished, used)
    against = _arm([partner for _, partner in pairing], read.finished, used.values())
    complete = arm.complete and against.complete
    control = all(cell.is_control for cell, _ in pairing)
    family = "study" if read.rules.family == "study" else (axis or "cells")
    return Contrast(
        axis, *levels, read.metric, read.at, arm, against,
        pairs=len(used),
        contexts=len(pairing),
        difference=found.difference,
        differences=differences,
        family="controls" if control else family,
        tost_p=found.tost_p,
        within_margin=complete and found.tost_p is not None and found.tost_p < read.rules.alpha,
        is_control=control,
        matched=tuple(used.items()),
        parts=found.parts,
    )  # fmt: skip


def _pairs(pairing: Pairing) -> Iterator[tuple[int, str, str]]:
    """Yield seed, treated and untreated trial; a trial on both sides is no pair."""
    for cell, partner in pairing:
        for seed, treated in cell.trials.items():
            untreated = partner.trials.get(seed)
            if untreated is not None and untreated != treated:
                yield seed, treated, untreated


def _arm(cells: Iterable[Cell], finished: set[str], used: Iterable[str]) -> Arm:
    planned = {trial_id for cell in cells for trial_id in cell.trials.values()}
    return Arm(len(planned), len(planned & finished), tuple(dict.fromkeys(used)))


def judged(contrasts: list[Contrast], rules: Rules) -> list[Contrast]:
    """Adjust p over each family and say what follows."""
    if rules.looks:
        contrasts = _equal(contrasts, rules)
    adjusted = _adjusted(contrasts, [c.difference.p if c.difference else None for c in contrasts], rules)
    tested = Counter(contrasts[i].family for i in adjusted)
    return [
        replace(
            contrast,
            holm_p=adjusted.get(i),
            verdict=_verdict(contrast, adjusted.get(i), rules),
            tested=tested[contrast.family],
        )
        for i, contrast in enumerate(contrasts)
    ]


def _adjusted(contrasts: Sequence[Contrast], ps: Sequence[float | None], rules: Rules) -> dict[int, float]:
    """Adjust p by Holm within each family; in an adaptive study one that has no p yet counts with p = 1."""
    counted = [1.0 if p is None and rules.looks else p for p in ps]
    adjusted = statistics.holm_within([contrast.family for contrast in contrasts], counted)
    return {i: p for i, p in adjusted.items() if ps[i] is not None}


def _equal(contrasts: list[Contrast], rules: Rules) -> list[Contrast]:
    """Say what is equal within the margin, p adjusted over the family: equality ends a contrast too."""
    adjusted = _adjusted(contrasts, [contrast.tost_p for contrast in contrasts], rules)
    return [
        replace(one, within_margin=not one.conditional and adjusted.get(i, 1.0) < rules.alpha)
        for i, one in enumerate(contrasts)
    ]


def _verdict(contrast: Contrast, holm_p: float | None, rules: Rules) -> Verdict:
    difference = contrast.difference
    if difference is None:
        return "no pair"
    if difference.n < 2:
        return "one pair"
    if holm_p is not None and holm_p < rules.alpha:
        if contrast.within_margin:
            return "negligible"
        return "better" if (difference.mean < 0) == contrast.metric.lower_is_better else "worse"
    return "equivalent" if contrast.within_margin else "undecided"
