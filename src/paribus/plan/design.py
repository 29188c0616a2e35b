"""Every combination once, in a stable order: the cells of a study and the trials they need."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paribus.errors import StudyError
from paribus.plan import levels
from paribus.plan.cells import Arm, Assembly, distinct
from paribus.plan.content import Contents, Found, content_of, hub_key, pinned, placed, task_settings
from paribus.plan.study import Study
from paribus.plan.trial import Job, Trial, Unsupported, identity
from paribus.sources.blocks import HubModel
from paribus.techniques import AXES, ModelFacts, Technique

if TYPE_CHECKING:
    from collections.abc import Mapping


LARGEST = 100_000
"""Cells a study may ask for: a slip in a grid should be an error, not an hour of planning."""


@dataclass(frozen=True)
class Cell:
    """One cell of a design: where it stands on the axes that vary, and its trial for each seed.

    `coordinates` name the level of every axis that varies, in the order of the study ("-" where a setting
    does not exist in the cell); `levels` are the levels themselves. `factor` is the axis a cell belongs to
    in a one_factor_at_a_time design, None for the base. Several cells may share a trial.
    """

    coordinates: dict[str, str]
    levels: dict[str, Any]
    group: str
    trials: dict[int, str]
    is_baseline: bool = False
    factor: str | None = None
    is_control: bool = False


@dataclass(frozen=True)
class Excluded:
    """A cell that is not planned, and why."""

    coordinates: dict[str, str]
    reason: str

    def __str__(self) -> str:
        return f"{', '.join(f'{axis} {level}' for axis, level in self.coordinates.items())}: {self.reason}"


@dataclass(frozen=True)
class Plan:
    """What a study needs: its cells, and each trial once.

    `jobs` come seed by seed, so that an interrupted run has every cell at the first seeds. `facts` are those
    of each trial's model, `commits` those at which hub models were found.
    """

    study: Study
    jobs: tuple[Job, ...]
    cells: tuple[Cell, ...]
    facts: dict[str, ModelFacts] = field(repr=False)
    excluded: tuple[Excluded, ...] = ()
    commits: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _by_id(self) -> dict[str, Job]:
        return {job.trial_id: job for job in self.jobs}

    def job(self, trial_id: str) -> Job:
        """Return a planned trial's job; raises KeyError for any other."""
        return self._by_id[trial_id]

    @property
    def least(self) -> tuple[Job, ...]:
        """Return the trials that are run in any case: all but the further seeds of an adaptive study."""
        first = self.study.repeat.seeds[: self.study.repeat.least]
        return tuple(job for job in self.jobs if job.trial.seed in first)

    @property
    def axes(self) -> tuple[str, ...]:
        """Name the settings that differ between cells, in the order of the study."""
        return tuple(self.cells[0].coordinates)

    @property
    def baseline(self) -> Cell:
        """Return the cell that the others are compared with."""
        return next(cell for cell in self.cells if cell.is_baseline)

    def to_json(self, unsupported: Mapping[str, Unsupported] | None = None) -> dict[str, Any]:
        """Return the plan as plain values, in a stable order.

        `trials` lists every planned trial once (id, group, seed, settings, content hashes, the coordinates of
        its cells), seed by seed; `cells` the cells in the order of the design with their trials; `excluded`
        what is left out and why. `unsupported` says which trials cannot run here: they are listed like the
        others, with technique, reason and way out under `unsupported`, which is null for the rest.
        """
        places: dict[str, list[dict[str, str]]] = {}
        for cell in self.cells:
            for trial_id in cell.trials.values():
                places.setdefault(trial_id, []).append(cell.coordinates)
        blocked = unsupported or {}
        return {
            "paribus": self.study.paribus,
            "study": self.study.name,
            "question": self.study.question,
            "design": self.study.design,
            "axes": list(self.axes),
            "seeds": list(self.study.repeat.seeds),
            "least_seeds": self.study.repeat.least or len(self.study.repeat.seeds),
            "least_trials": len(self.least),
            "baseline": self.baseline.coordinates,
            "cells": [_cell_json(cell) for cell in self.cells],
            "trials": [_trial_json(job, places[job.trial_id], blocked) for job in self.jobs],
            "excluded": [{"coordinates": e.coordinates, "reason": e.reason} for e in self.excluded],
        }


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "coordinates": cell.coordinates,
        "group": cell.group,
        "trials": list(cell.trials.values()),
        "baseline": cell.is_baseline,
        "factor": cell.factor,
        "control": cell.is_control,
    }


def _trial_json(job: Job, cells: list[dict[str, str]], blocked: Mapping[str, Unsupported]) -> dict[str, Any]:
    obstacle = blocked.get(job.trial_id)
    settings = job.trial.model_dump(mode="json", exclude={"seed", "content"})
    return {
        "id": job.trial_id,
        "group": job.group,
        "seed": job.trial.seed,
        "settings": settings,
        "content": job.trial.content.model_dump(exclude_defaults=True),
        "cells": cells,
        "unsupported": obstacle.model_dump(exclude={"outcome"}) if obstacle else None,
    }


def expand(study: Study, contents: Contents | None = None) -> Plan:
    """Return the cells and trials of a study.

    Raises StudyError, DataError or ModelError. `contents` says what models and data hold; by default they
    are read from where the study names them.
    """
    contents = contents or Found(study)
    assembly = Assembly(study)
    arms, excluded = _planned(assembly)
    baseline = assembly.arm(study.compare.baseline, ("compare", "baseline")).at
    if baseline not in {arm.at for arm in arms}:
        raise _no_baseline(study, assembly, excluded)
    jobs: dict[str, Job] = {}
    facts: dict[str, ModelFacts] = {}
    commits: dict[str, str] = {}
    cells = []
    tasks = task_settings(study)
    for arm in arms:
        made = _jobs(arm, study, contents, tasks)
        jobs |= {job.trial_id: job for job in made if job.trial_id not in jobs}
        found = contents.model(arm.draft["model"])
        facts |= dict.fromkeys((job.trial_id for job in made), found.facts)
        if isinstance(arm.draft["model"], HubModel) and found.commit:
            commits[hub_key(arm.draft["model"])] = found.commit
        cells.append(_cell(arm, made, arm.at == baseline))
    order = {seed: position for position, seed in enumerate(study.repeat.seeds)}
    ordered = sorted(jobs.values(), key=lambda job: order[job.trial.seed])
    return Plan(study, tuple(ordered), tuple(cells), facts, tuple(excluded), commits)


def _jobs(arm: Arm, study: Study, contents: Contents, tasks: tuple[Any, ...]) -> list[Job]:
    """Return a cell's jobs, one a seed; the canonical form is made once, since only the seed differs."""
    model, data = arm.draft["model"], arm.draft["data"]
    content = content_of(contents, model, data, _read_by(arm, study))
    blocks = {**arm.draft, "model": pinned(contents, model), "content": content}
    score = contents.heldout(data)
    trials = [Trial(**blocks, seed=seed) for seed in arm.seeds or study.repeat.seeds]
    canonical = trials[0].canonical()
    group = identity({key: value for key, value in canonical.items() if key != "seed"})
    return [
        Job(
            trial_id=identity({**canonical, "seed": trial.seed}),
            group=group,
            trial=trial,
            scores=(score,),
            tasks=tasks,
            allow_code_execution=study.score.allow_code_execution,
            keep=study.keep,
            checkpoint_every=study.resources.checkpoint_every,
            memory_gib=study.resources.memory_gib,
        )
        for trial in trials
    ]


def _read_by(arm: Arm, study: Study) -> dict[str, str]:
    """Hash what a cell's techniques read, by axis; errors get the line of the level."""
    found = {}
    for axis in AXES:
        level = arm.draft[axis]
        if type(level).content_sha256 is Technique.content_sha256:
            continue
        with placed(study.document.place(Assembly(study).route(axis, level, ()))):
            found[axis] = level.content_sha256(study.folder)
    return {axis: sha256 for axis, sha256 in found.items() if sha256}


def _cell(arm: Arm, jobs: list[Job], is_baseline: bool) -> Cell:
    return Cell(
        coordinates=arm.coordinates,
        levels=arm.levels,
        group=jobs[0].group,
        trials={job.trial.seed: job.trial_id for job in jobs},
        is_baseline=is_baseline,
        factor=arm.factor,
        is_control=arm.is_control,
    )


def _planned(assembly: Assembly) -> tuple[list[Arm], list[Excluded]]:
    """Return the cells of the design less the excluded ones, then the included ones and the controls."""
    study = assembly.study
    arms: dict[tuple[str, ...], Arm] = {}
    excluded: list[Excluded] = []
    for arm in distinct(DESIGNS[study.design](assembly)):
        reason = next((e.reason for e in study.exclude if levels.holds(e.where, arm.draft)), None)
        if reason is None:
            arms[arm.at] = arm
        else:
            excluded.append(Excluded(arm.coordinates, reason))
    for index, included in enumerate(study.include):
        arm = assembly.arm(included.levels, ("include", index), _factor(assembly, included.levels))
        arms.setdefault(arm.at, replace(arm, seeds=included.seeds))
    for index, changes in enumerate(study.compare.controls):
        arm = assembly.arm(changes, ("compare", "controls", index), _factor(assembly, changes))
        arms[arm.at] = replace(arms.get(arm.at, arm), is_control=True)
    excluded += _unused(assembly) if study.design == "leave_one_out" else []
    listed = {tuple(e.coordinates.values()) for e in excluded} & set(arms)
    return list(arms.values()), [e for e in excluded if tuple(e.coordinates.values()) not in listed]


def _factor(assembly: Assembly, changes: Mapping[str, Any]) -> str | None:
    """Return the one axis that a stated cell changes, where cells belong to factors."""
    single = len(changes) == 1 and assembly.study.design == "one_factor_at_a_time"
    return next(iter(changes)) if single else None


def _grid(assembly: Assembly) -> Iterator[Arm]:
    """Yield every combination; where an axis does not apply, its base stands once."""
    vary = assembly.study.vary
    count = math.prod(len(axis.values) for axis in vary.values())
    if count > LARGEST:
        message = f"the grid has {count} cells; at most {LARGEST} can be planned"
        raise StudyError(message, way_out="vary fewer settings", place=assembly.study.place("vary"))
    for combination in itertools.product(*(axis.values for axis in vary.values())):
        yield assembly.arm(dict(zip(vary, combination, strict=True)), ("vary",))


def _one_factor_at_a_time(assembly: Assembly) -> Iterator[Arm]:
    """Yield the base, then each axis's levels in turn, each crossed with what its `also` names."""
    base = assembly.arm({}, ("vary",))
    yield base
    for name, axis in assembly.study.vary.items():
        _check_condition(assembly, name, base, "the base cell")
        crossed = [[(other, level) for level in values] for other, values in axis.also.items()]
        for level in axis.values:
            for extra in itertools.product(*crossed):
                arm = assembly.arm(_changes(assembly, {name: level, **dict(extra)}), ("vary", name), name)
                changed = [n for n in arm.coordinates if arm.coordinates[n] != base.coordinates[n]]
                yield replace(arm, factor=changed[0] if len(changed) == 1 else name)


def _changes(assembly: Assembly, chosen: dict[str, Any]) -> dict[str, Any]:
    """Leave out what equals the base, so that a setting the base has not is only changed where it exists."""
    return {n: v for n, v in chosen.items() if not levels.same(v, assembly.base_levels.get(n))}


def _leave_one_out(assembly: Assembly) -> Iterator[Arm]:
    """Yield the base, then each axis's first other level together, then that with each axis left out."""
    base = assembly.arm({}, ("vary",))
    yield base
    full: dict[str, Any] = {}
    for name in assembly.study.vary:
        beside = next(assembly.others(name), None)
        if beside is None:
            place = assembly.study.place("vary", name)
            message = f"vary.{name} has no level beside the base, so there is nothing to leave out"
            raise StudyError(message, way_out="add a level or take the axis out", place=place)
        full[name] = beside
    whole = assembly.arm(full, ("vary",))
    yield whole
    for name in assembly.study.vary:
        _check_condition(assembly, name, whole, "the cell with every technique")
        kept = {n: v for n, v in full.items() if n != name}
        left = {n: v for n, v in kept.items() if n.partition(".")[0] != name}
        yield assembly.arm(left, ("vary", name))


def _unused(assembly: Assembly) -> list[Excluded]:
    """List the levels that leave_one_out has no cell for."""
    reason = "leave_one_out takes each axis's first level beside the base"
    return [
        Excluded({name: levels.label(level)}, reason)
        for name in assembly.study.vary
        for level in list(assembly.others(name))[1:]
    ]


def _check_condition(assembly: Assembly, name: str, arm: Arm, called: str) -> None:
    condition = assembly.study.vary[name].when
    if not levels.holds(condition, arm.draft):
        wanted = ", ".join(f"{n} {' or '.join(map(levels.label, v))}" for n, v in condition.items())
        raise StudyError(
            f"vary.{name} applies when {wanted}, which {called} is not: none of its values would ever run",
            way_out=f"use `also` instead of `when`, change {called}, or choose design: grid",
            place=assembly.study.place("vary", name, "when"),
        )


def _no_baseline(study: Study, assembly: Assembly, excluded: list[Excluded]) -> StudyError:
    baseline = assembly.arm(study.compare.baseline, ("compare", "baseline"))
    where = ", ".join(f"{axis} {level}" for axis, level in baseline.coordinates.items())
    reason = next((e.reason for e in excluded if e.coordinates == baseline.coordinates), None)
    why = f"it is excluded ({reason})" if reason else "no cell of the design stands there"
    stated = "baseline" in study.compare.model_fields_set
    return StudyError(
        f"the baseline ({where}) is not planned: {why}",
        way_out=f"name another under compare.baseline, or {'take it out of' if reason else 'add it under'} "
        f"{'exclude' if reason else 'include'}",
        place=study.place("compare", "baseline") if stated else study.place("exclude" if reason else "vary"),
    )


DESIGNS = {
    "grid": _grid,
    "one_factor_at_a_time": _one_factor_at_a_time,
    "leave_one_out": _leave_one_out,
}
