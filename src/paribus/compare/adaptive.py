"""Adaptive replication: after each look, what is decided and which trials are needed next.

All of it is worked out anew from the record, look by look, so that whoever asks gets the same answer, and a
run that was killed goes on as if it had not been. A trial counts from the look that needs it, even where it
has been recorded before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from paribus.compare.contrast import (
    Contrast,
    Pairing,
    Read,
    Rules,
    baseline_of,
    changed,
    contrast_of,
    judged,
    level_pairings,
    one_family,
)
from paribus.compare.readings import Curve, Metric, planned_scores, values

if TYPE_CHECKING:
    from paribus.plan.design import Cell, Plan
    from paribus.plan.trial import Job
    from paribus.record.store import Recorded, Store

Key = tuple[str, ...]
"""A contrast: an axis, its level and the baseline's, or all coordinates of a cell."""
Why = Literal["better", "worse", "negligible", "equivalent", "conditional", "no pair", "limit"]
"""Why a contrast gets no more seeds.

The first four are decisions. `conditional`: it is equal where it finished, and as some trials did not, no
seed can make it equivalent. `no pair`: nothing finished on one side. `limit`: no seeds are left.
"""
DECIDED = ("better", "worse", "negligible", "equivalent")


@dataclass(frozen=True)
class Stop:
    """Where a contrast stands after `seeds` seeds; `why` is absent while it goes on."""

    contrast: Contrast
    seeds: int
    why: Why | None


@dataclass(frozen=True)
class Replay:
    """An adaptive study as far as it is recorded.

    `plan` holds the trials needed so far, `whole` every trial there may be; `seeds` is the look that was
    reached and `waiting` the trials of it that are not settled.
    """

    plan: Plan
    whole: Plan
    stops: Mapping[Key, Stop]
    seeds: int
    waiting: tuple[str, ...]

    @property
    def ended(self) -> bool:
        """Say whether no trial is missing and every contrast has stopped."""
        return not self.waiting and all(stop.why for stop in self.stops.values())

    @property
    def open(self) -> int:
        """Count the contrasts that go on."""
        return sum(stop.why is None for stop in self.stops.values())

    @property
    def saved(self) -> int:
        """Count the trials that the most seeds for every cell would have taken beside those needed."""
        return len(self.whole.jobs) - len(self.plan.jobs)


def replay(plan: Plan, recorded: Mapping[str, Recorded]) -> Replay:
    """Go through the looks of an adaptive study as far as the record reaches.

    Raises ValueError for a study whose seeds are fixed.
    """
    settled = [job.trial_id for job in plan.jobs if _settled(job, recorded.get(job.trial_id))]
    return followed(plan, _read(plan, recorded), settled)


def _settled(job: Job, known: Recorded | None) -> bool:
    """Say whether a trial has an outcome and, where it finished, every score that is asked for."""
    if known is None or known.result.result.outcome != "finished":
        return known is not None
    return len(planned_scores(job, known.scores)) == len(job.scores)


def followed(plan: Plan, read: Read, recorded: Collection[str]) -> Replay:
    """Go through the looks with values that were read before; `recorded` are the trials that are settled."""
    looks, seeds, asked = plan.study.repeat.looks, plan.study.repeat.seeds, _asked(plan.cells)
    if looks is None:
        raise ValueError(f"the seeds of {plan.study.name} are fixed")
    upto = {cell.group: looks.first for cell in plan.cells}
    stops: dict[Key, Stop] = {}
    count = looks.first
    while True:
        step = _narrowed(plan, {group: seeds[:n] for group, n in upto.items()})
        waiting = tuple(job.trial_id for job in step.jobs if job.trial_id not in recorded)
        if waiting:
            return Replay(step, plan, stops, count, waiting)
        stops = _looked(read, asked, stops, seeds[:count], last=count == looks.last)
        going_on = [key for key, stop in stops.items() if stop.why is None]
        if not going_on:
            return Replay(step, plan, stops, count, ())
        count += 1
        for cell in (cell for key in going_on for pair in asked[key].pairing for cell in pair):
            upto[cell.group] = count


def needed(plan: Plan, store: Store) -> Plan:
    """Return the plan less the trials that an adaptive study does not need so far."""
    return replay(plan, store.recorded()).plan if plan.study.repeat.looks else plan


def contrasts(read: Read, found: Replay) -> list[Contrast]:
    """Contrast every level with the baseline's over the seeds up to the look at which it stopped."""
    seeds = found.whole.study.repeat.seeds
    made = [
        _contrast(read, one, seeds[: found.stops[key].seeds] if key in found.stops else seeds)
        for key, one in _levels(found.plan.cells).items()
    ]
    return judged(made, read.rules)


@dataclass(frozen=True)
class _Asked:
    """What is asked of two sides: the axis where there is one, the level and the baseline's, the pairs."""

    axis: str | None
    levels: tuple[str, str]
    pairing: Pairing


def _asked(cells: Sequence[Cell]) -> dict[Key, _Asked]:
    """Return the contrasts that a study is to decide.

    They are those of the levels, or of the cells where the levels' leave out a cell, as they do where each
    technique is left out of all in turn.
    """
    levels, base = _levels(cells), baseline_of(cells)
    covered = {cell.group for one in levels.values() for cell, _ in one.pairing}
    others = [cell for cell in cells if base is not None and cell is not base]
    if base is None or all(cell.group in covered for cell in others):
        return levels
    return {tuple(cell.coordinates.values()): _Asked(*changed(cell, base), [(cell, base)]) for cell in others}


def _levels(cells: Sequence[Cell]) -> dict[Key, _Asked]:
    return {key: _Asked(key[0], (key[1], key[2]), pairing) for key, pairing in level_pairings(cells).items()}


def _looked(
    read: Read, asked: Mapping[Key, _Asked], before: Mapping[Key, Stop], seeds: tuple[int, ...], *, last: bool
) -> dict[Key, Stop]:
    """Judge every contrast as of one look; one that has stopped stays as it was found then."""
    stopped = {key: stop for key, stop in before.items() if stop.why}
    made = [
        stopped[key].contrast if key in stopped else _contrast(read, one, seeds) for key, one in asked.items()
    ]
    found = {}
    for key, contrast in zip(asked, judged(one_family(made), read.rules), strict=True):
        why = stopped[key].why if key in stopped else _why(contrast, asked[key].pairing, seeds, read, last)
        count = stopped[key].seeds if key in stopped else len(seeds)
        found[key] = Stop(contrast, count, contrast.verdict if contrast.verdict in DECIDED else why)
    return found


def _why(contrast: Contrast, pairing: Pairing, seeds: tuple[int, ...], read: Read, last: bool) -> Why | None:
    """Say why an undecided contrast ends here, or None where a further seed can tell."""
    if not contrast.pairs:
        return "no pair"
    if contrast.conditional and contrast.tost_p is not None and contrast.tost_p < read.rules.alpha:
        return "conditional"
    more = any(set(cell.trials) & set(partner.trials) - set(seeds) for cell, partner in pairing)
    return None if more and not last else "limit"


def _contrast(read: Read, one: _Asked, seeds: tuple[int, ...]) -> Contrast:
    """Estimate a contrast from some of the seeds."""
    pairing = [(_only(cell, seeds), _only(partner, seeds)) for cell, partner in one.pairing]
    return contrast_of(read, one.axis, one.levels, pairing)


def _only(cell: Cell, seeds: tuple[int, ...]) -> Cell:
    return replace(cell, trials={seed: trial for seed, trial in cell.trials.items() if seed in seeds})


def _narrowed(plan: Plan, upto: Mapping[str, tuple[int, ...]]) -> Plan:
    """Return the plan with the seeds that each cell's group has been given."""
    cells = tuple(_only(cell, upto[cell.group]) for cell in plan.cells)
    needed = {trial for cell in cells for trial in cell.trials.values()}
    return replace(plan, cells=cells, jobs=tuple(job for job in plan.jobs if job.trial_id in needed))


def _read(plan: Plan, recorded: Mapping[str, Recorded]) -> Read:
    """Read the primary metric of every recorded trial of a plan."""
    compare, metric = plan.study.compare, Metric.parse(plan.study.compare.metric, plan.study.task)
    finished = {
        job.trial_id: recorded[job.trial_id]
        for job in plan.jobs
        if job.trial_id in recorded and recorded[job.trial_id].result.result.outcome == "finished"
    }
    curves = {trial: Curve.of(planned_scores(plan.job(trial), one.scores)) for trial, one in finished.items()}
    found = values(curves, metric, compare.at, None)
    rules = Rules(compare.margin, compare.confidence, compare.family, plan.study.repeat.looks)
    return Read(plan.cells, found, set(finished), metric, compare.at, rules)
