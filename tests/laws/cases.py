"""What the laws are asked of: every level of every axis, alone, and pairs of levels together."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from settings import SETTINGS

import tiny
from paribus.machine import host
from paribus.plan.trial import APPLIED
from paribus.techniques import AXES, Accumulation, Existing, Full, Live, Lora, Obstacle, Setting, Technique

NULL: Mapping[str, Technique] = {axis: members[0]() for axis, members in AXES.items() if axis != "tuning"}
"""The level of each axis that says: nothing is done here."""


@dataclass(frozen=True)
class Case:
    """Levels by axis under a name; what is not chosen is absent from the run, and `full` is what trains."""

    name: str
    chosen: Mapping[str, Technique]

    @cached_property
    def cells(self) -> dict[str, Technique]:
        """The levels in the order in which they are applied."""
        whole = {"tuning": Full(), **self.chosen}
        return {axis: whole[axis] for axis in APPLIED if axis in whole}

    @property
    def techniques(self) -> tuple[Technique, ...]:
        return tuple(self.cells.values())

    @property
    def tuner(self) -> Any:
        return self.cells["tuning"]

    @property
    def parts(self) -> list[str]:
        """The name of each level alone."""
        return [_name(axis, level) for axis, level in self.chosen.items()]

    def on(self, model: str) -> Case:
        """Return this case as it is on one of the tiny models: a saved adapter is one that fits it."""
        fitting = {
            axis: level.model_copy(update={"path": adapter(model)}) if isinstance(level, Existing) else level
            for axis, level in self.chosen.items()
        }
        return Case(self.name, fitting)

    def having(self, **levels: Technique) -> Case:
        """Return this case with other levels on some axes."""
        return Case(self.name, {**self.chosen, **levels})

    def without_null(self) -> Case:
        """Return this case without the levels that do nothing."""
        null = {axis: level.canonical() for axis, level in NULL.items()}
        left = {axis: one for axis, one in self.chosen.items() if null.get(axis) != one.canonical()}
        return Case(self.name, left)

    def split(self, steps: int) -> Case:
        """Return this case with its batch in so many micro-batches, summed as it says."""
        own = self.chosen.get("gradient_accumulation_steps", Accumulation())
        return self.having(gradient_accumulation_steps=own.model_copy(update={"steps": steps}))

    def obstacle(self, model: str) -> Obstacle | None:
        """Say why this cannot run on one of the tiny models, as planning would."""
        setting = Setting(tiny.facts(model), dict(NULL) | self.cells)
        found = (level.obstacle(host(), setting) for level in self.techniques)
        return next((obstacle for obstacle in found if obstacle), None)


_ADAPTERS = tempfile.TemporaryDirectory()
"""Where adapters to go on from are kept as long as the process lives."""


@cache
def adapter(model: str) -> str:
    """Train a small adapter for one of the tiny models and return its folder."""
    folder, lora = Path(_ADAPTERS.name) / model, Lora(r=2)

    def keep(wrapped: Any, live: Live) -> None:
        lora.save(wrapped, folder)

    tiny.run(tiny.MODELS[model](), lora, seed=3, max_steps=2, after=keep)
    return str(folder)


@cache
def singles() -> list[Case]:
    """List every level: each class at its defaults where it has any, and each block of `SETTINGS`."""
    made = []
    for axis, members in AXES.items():
        levels = [level for member in members for level in _levels(axis, member)]
        unequal = {_name(axis, level): level for level in levels}
        made += [Case(name, {axis: level}) for name, level in unequal.items()]
    return made


def _levels(axis: str, member: type[Technique]) -> Iterator[Technique]:
    try:
        yield member()
    except ValidationError as error:
        if any(fault["type"] != "missing" for fault in error.errors()):
            raise
    kind = _kind(member)
    for block in SETTINGS.get(axis, ()):
        if block.get("kind", kind) == kind:
            yield member.model_validate(block)


def _kind(member: type[Technique]) -> str | None:
    field = member.model_fields.get("kind")
    return field.default if field else None


def _name(axis: str, level: Technique) -> str:
    """Name a level as tables do; a bare number needs its axis."""
    short = {"gradient_accumulation_steps": "accumulation", "neftune_noise_alpha": "noise"}.get(axis, axis)
    return level.label if axis in ("tuning", "precision") else f"{short} {level.label}"


def of_class(member: type[Technique]) -> list[Case]:
    """List the single cases of one class."""
    return [case for case in singles() if any(type(level) is member for level in case.chosen.values())]


@cache
def pairs(model: str) -> list[Case]:
    """Cover every pair of levels of two axes that can run together on a model with few cases.

    Greedy: each case takes, axis by axis, the level that covers most pairs still open.
    """
    levels = one_of_each()
    named = [(axis, index) for axis, found in levels.items() for index in range(len(found))]
    left = {
        frozenset((one, other))
        for one, other in combinations(named, 2)
        if one[0] != other[0] and _runs(model, levels, (one, other))
    }
    cases = []
    while left:
        taken = list(min(left, key=sorted))
        for axis, found in levels.items():
            if axis in {name for name, _ in taken}:
                continue
            able = [(axis, i) for i in range(len(found)) if _runs(model, levels, (*taken, (axis, i)))]
            taken += (
                [max(able, key=lambda one: sum(frozenset((one, t)) in left for t in taken))] if able else []
            )
        left -= {frozenset(pair) for pair in combinations(taken, 2)}
        chosen = {axis: levels[axis][index] for axis, index in taken}
        name = " + ".join(_name(axis, chosen[axis]) for axis in APPLIED if axis in chosen)
        cases.append(Case(name, chosen))
    return cases


@cache
def one_of_each() -> dict[str, list[Technique]]:
    """Take one level of each class of each axis, with an effect and able to run here where there is one."""
    found: dict[str, list[Technique]] = {axis: [] for axis in AXES}
    for axis, members in AXES.items():
        for levels in ([case.chosen[axis] for case in of_class(member)] for member in members):
            acting = [level for level in levels if level != NULL.get(axis)]
            able = [level for level in acting if _somewhere(axis, level)]
            found[axis] += (able or acting or levels)[:1]
    return found


def _somewhere(axis: str, level: Technique) -> bool:
    return any(Case("", {axis: level}).obstacle(model) is None for model in tiny.MODELS)


def _runs(model: str, levels: Mapping[str, Sequence[Technique]], taken: Sequence[tuple[str, int]]) -> bool:
    return Case("", {axis: levels[axis][index] for axis, index in taken}).obstacle(model) is None
