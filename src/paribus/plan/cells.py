"""Put cells together: the base with some settings changed, placed on named coordinates."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from paribus.errors import StudyError
from paribus.plan import levels
from paribus.plan.complaints import as_error, translate
from paribus.plan.levels import ABSENT, Draft
from paribus.plan.study import Study
from paribus.plan.yaml_lines import Route
from paribus.techniques import AXES


@dataclass(frozen=True)
class Arm:
    """A cell without its content: its blocks and coordinates, and the factor it belongs to."""

    draft: Draft
    coordinates: dict[str, str]
    levels: dict[str, Any]
    factor: str | None = None
    is_control: bool = False
    seeds: tuple[int, ...] | None = None
    """The seeds it is repeated with; None for all of the study's."""

    @property
    def at(self) -> tuple[str, ...]:
        return tuple(self.coordinates.values())


@dataclass(frozen=True)
class Assembly:
    """Makes the cells of one study.

    `names` are the settings that differ between cells, in the order of the study: what is varied, then what
    is crossed, included or declared as a control.
    """

    study: Study
    _labels: dict[str, dict[Any, str]] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        study = self.study
        crossed = (name for axis in study.vary.values() for name in axis.also)
        stated = (
            name for cell in (*(i.levels for i in study.include), *study.compare.controls) for name in cell
        )
        return tuple(dict.fromkeys([*study.vary, *crossed, *stated, *study.compare.baseline]))

    @cached_property
    def blocks(self) -> Draft:
        """Return the base's blocks as they are written."""
        return {name: getattr(self.study, name) for name in levels.BLOCKS}

    @cached_property
    def base_levels(self) -> dict[str, Any]:
        """Return each setting's level in the base cell, as far as the base has it."""
        found = {}
        for name in self.names:
            if "." in name and name in self.study.vary:
                found[name] = self.study.vary[name].values[0]
            elif levels.applies(self.blocks, name):
                found[name] = levels.value_of(self.blocks, name)
        return found

    def arm(
        self, changes: Mapping[str, Any], origin: Route, factor: str | None = None, control: bool = False
    ) -> Arm:
        """Return the base cell with some settings changed; `origin` is where a cell without a line stands.

        A setting left at its base level is dropped where it does not exist, such as `tuning.r` under full
        fine-tuning; to change one there is an error.
        """
        chosen = {**self.base_levels, **changes}
        draft, conditional = dict(self.blocks), [n for n in chosen if self._when(n)]
        ordered = sorted((n for n in chosen if n not in conditional), key=lambda n: "." in n)
        held: list[str] = []
        for name in [*ordered, *sorted(conditional, key=lambda n: "." in n)]:
            if not levels.holds(self._when(name), draft):
                continue
            if not levels.applies(draft, name):
                if name in changes:
                    raise self._inapplicable(name, changes[name], draft, origin)
                continue
            draft = self._changed(draft, name, chosen[name], origin)
            held.append(name)
        self._check_batch(draft, changes, origin)
        return self._described(draft, {n: chosen[n] for n in held}, factor, control)

    def _described(self, draft: Draft, chosen: dict[str, Any], factor: str | None, control: bool) -> Arm:
        present = [name for name in self.names if levels.applies(draft, name)]
        stated = {n: chosen[n] if n in chosen else levels.value_of(draft, n) for n in present}
        coordinates = {n: self._label(n, stated[n]) if n in stated else ABSENT for n in self.names}
        real = {name: levels.value_of(draft, name) for name in present}
        return Arm(draft, coordinates, real, factor, control)

    def _label(self, name: str, level: Any) -> str:
        """Name a level so that two different levels of a setting never share a name."""
        known = self._labels.setdefault(name, {})
        key = levels.identity_of(level)
        if key not in known:
            plain, taken = levels.label(level), set(known.values())
            numbered = (f"{plain} #{n}" for n in range(2, len(taken) + 3))
            known[key] = plain if plain not in taken else next(n for n in numbered if n not in taken)
        return known[key]

    def _when(self, name: str) -> Mapping[str, tuple[Any, ...]]:
        axis = self.study.vary.get(name)
        return axis.when if axis else {}

    def _changed(self, draft: Draft, name: str, level: Any, origin: Route) -> Draft:
        try:
            return levels.changed(draft, name, level)
        except ValidationError as error:
            owner = type(draft[name.partition(".")[0]])
            found = translate(error, owner, {}, self.route(name, level, origin))
            raise as_error(self.study.document, found) from error

    def _inapplicable(self, name: str, level: Any, draft: Draft, origin: Route) -> StudyError:
        block, _, field_name = name.partition(".")
        having = [c.model_fields["kind"].default for c in AXES.get(block, ()) if field_name in c.model_fields]
        key = "also" if self.study.design == "one_factor_at_a_time" else "when"
        way_out = f"set {block}: {' or '.join(having)} in the same cell, or take {name} out"
        if origin[0] == "vary":
            way_out = f"add `{key}: {{{block}: {having[0]}}}` to vary.{name}"
        place = self.study.document.place(self.route(name, level, origin))
        have = levels.label(draft[block])
        message = f"{name} cannot be set in a cell whose {block} is {have}, which has no {field_name}"
        return StudyError(message, way_out=way_out, place=place)

    def _check_batch(self, draft: Draft, changes: Mapping[str, Any], origin: Route) -> None:
        batch, steps = draft["training"].effective_batch_size, draft["gradient_accumulation_steps"].steps
        if batch % steps == 0:
            return
        changed = [n for n in changes if n.startswith(("gradient_accumulation_steps", "training"))]
        routes = [self.route(name, changes[name], origin) for name in changed]
        fixed = self.study.document.place(("training", "effective_batch_size"))
        possible = ", ".join(str(n) for n in range(1, min(batch, 64) + 1) if batch % n == 0)
        raise StudyError(
            f"an effective batch of {batch} (line {fixed.line}) cannot be split into {steps} micro-batches",
            way_out=f"gradient_accumulation_steps can be {possible}",
            place=self.study.document.place(routes[0] if routes else ("gradient_accumulation_steps",)),
        )

    def route(self, name: str, level: Any, origin: Route) -> Route:
        """Say where a level was written: in `vary`, or where its cell comes from."""
        axis = self.study.vary.get(name)
        for index, value in enumerate(axis.values if axis else ()):
            if levels.same(value, level):
                inner: Route = ("vary", name, index)
                return inner if inner in self.study.document.lines else ("vary", name, "values", index)
        return (*origin, name)

    def others(self, name: str) -> Iterator[Any]:
        """Yield a varied setting's levels other than the base's."""
        base = self.base_levels.get(name)
        return (level for level in self.study.vary[name].values if not levels.same(level, base))


def distinct(arms: Iterator[Arm], known: Collection[tuple[str, ...]] = ()) -> Iterator[Arm]:
    """Pass each place on the coordinates once, the first time it comes."""
    seen = set(known)
    for arm in arms:
        if arm.at not in seen:
            seen.add(arm.at)
            yield arm
