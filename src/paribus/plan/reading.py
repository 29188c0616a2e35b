"""Turn the plain values of a study file into a Study, and collect every problem on the way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from paribus.errors import Place, StudyError, nearest
from paribus.plan import levels
from paribus.plan.checks import contradictions
from paribus.plan.complaints import Problem, Problems, as_error, coerced, said, translate
from paribus.plan.repeat import expanded
from paribus.plan.study import FILE, Axis, Exclusion, Inclusion, Source, Study
from paribus.plan.yaml_lines import Document, Route, parse, read
from paribus.sources.blocks import EMBEDDED_GROUPS, EmbeddedData
from paribus.techniques import AXES

T = TypeVar("T")


def read_study(path: Path) -> Study:
    """Read a study from its folder or its file."""
    file = path / FILE if path.is_dir() else path
    if not file.exists():
        inside = sorted(p.parent.name for p in path.parent.glob(f"*/{FILE}")) if path.parent.is_dir() else []
        way_out = (
            nearest(path.name, inside) if inside else f"name a folder that holds a {FILE}, or the file itself"
        )
        raise StudyError("there is no study here", way_out=way_out, place=Place(file))
    return study_from(read(file))


def parse_study(text: str, folder: Path = Path()) -> Study:
    """Read a study from a text, as if it stood in `folder`."""
    return study_from(parse(text, folder / FILE))


def study_from(document: Document) -> Study:
    """Check a document as a study; raises StudyError that lists every problem found."""
    reading = _Reading(document)
    study = reading.study()
    if reading.problems or study is None:
        raise as_error(document, reading.problems)
    study._source = Source(document)
    return study


class _Reading:
    """One pass over a document: `raw` is rewritten step by step until it can be checked as a whole."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.raw: dict[str, Any] = copy.deepcopy(document.value)
        self.problems: list[Problem] = []

    def study(self) -> Study | None:
        self._version()
        self.raw["paribus"] = 1
        self._undotted()
        written = copy.deepcopy(self.raw)
        vary = self._vary()
        self._base(vary)
        self._words()
        self._repeat()
        self.raw |= {
            "vary": vary,
            "exclude": self._each("exclude", self._exclusion),
            "include": self._each("include", self._inclusion),
        }
        self._compare()
        study = self._checked(written)
        if study and not self.problems:
            self.problems += contradictions(study)
        return study

    def tried(self, read_one: Callable[..., T], *arguments: Any) -> T | None:
        """Return what a reader returns, or note its problems."""
        try:
            return read_one(*arguments)
        except Problems as found:
            self.problems += found.problems
            return None

    def _version(self) -> None:
        version = self.raw.get("paribus")
        if version is None or isinstance(version, bool) or version != 1:
            found = "is missing" if "paribus" not in self.raw else f"must be 1, not {said(version)}"
            problem = Problem(("paribus",), f"the schema version `paribus` {found}", "write `paribus: 1`")
            raise as_error(self.document, [problem])

    def _undotted(self) -> None:
        """Move `training.learning_rate: ...` at the top into its block, and note keys that belong in one."""
        for name in [name for name in self.raw if name not in Study.model_fields and "." not in name]:
            del self.raw[name]
            way_out = levels.suggestion(name, Study.model_fields)
            self.problems.append(Problem((name,), f"unknown key {name!r}", way_out))
        for name in [name for name in self.raw if "." in name]:
            value, route = self.raw.pop(name), (name,)
            if self.tried(levels.known, name, route) is None:
                continue
            block, _, field = name.partition(".")
            owner = self.raw.setdefault(block, {})
            if isinstance(owner, str):
                owner = self.raw[block] = {"kind": owner}
            elif isinstance(owner, int | float) and levels.shorthand(block):
                owner = self.raw[block] = {levels.shorthand(block): owner}
            if not isinstance(owner, dict) or field in owner:
                self.problems.append(Problem(route, f"{name} is set twice: here and in {block}", "keep one"))
                continue
            owner[field] = value
            self.document.lines[(block, field)] = self.document.lines[route]

    def _vary(self) -> dict[str, Axis]:
        raw = self.raw.get("vary", {})
        if not isinstance(raw, dict):
            wanted = "vary must be a block of settings and their values"
            self.problems.append(Problem(("vary",), f"{wanted}, not {said(raw)}"))
            return {}
        found = {name: self.tried(self._axis, name, values, ("vary", name)) for name, values in raw.items()}
        return {name: axis for name, axis in found.items() if axis}

    def _axis(self, name: str, raw: Any, route: Route) -> Axis:
        levels.known(name, route)
        block = raw if isinstance(raw, dict) else {"values": raw}
        for key in block:
            if key not in Axis.model_fields:
                raise Problems(
                    Problem(
                        (*route, key), f"unknown key {key!r} in vary.{name}", nearest(key, Axis.model_fields)
                    )
                )
        values, at = block.get("values"), (*route, "values") if block is raw else route
        if not isinstance(values, list):
            message = f"vary.{name} must be a list of values, not {said(values)}"
            raise Problems(Problem(at, message, f"write {name}: [first, second]"))
        if not values:
            raise Problems(
                Problem(at, f"vary.{name} has no values", "give it at least one, or take the axis out")
            )
        parsed = [self.tried(levels.parse, name, value, (*at, i)) for i, value in enumerate(values)]
        return Axis.model_construct(
            values=tuple(parsed),
            also=self._condition(block.get("also", {}), (*route, "also")),
            when=self._condition(block.get("when", {}), (*route, "when")),
        )

    def _condition(self, raw: Any, route: Route) -> dict[str, tuple[Any, ...]]:
        """Read settings with the levels that meet a condition; one level may stand without a list."""
        if not isinstance(raw, dict):
            wanted = "a block of settings and their values"
            self.problems.append(Problem(route, f"{route[-1]} must be {wanted}, not {said(raw)}"))
            return {}
        condition: dict[str, tuple[Any, ...]] = {}
        for name, values in raw.items():
            at = (*route, name)
            if self.tried(levels.known, name, at) is None:
                continue
            if values == []:
                self.problems.append(Problem(at, f"{name} has no values here", "give it at least one"))
            many = values if isinstance(values, list) else [values]
            parsed = (self.tried(levels.parse, name, v, (*at, i)) for i, v in enumerate(many))
            condition[name] = tuple(parsed)
        return condition

    def _levels(self, raw: Any, route: Route) -> dict[str, Any]:
        """Read one level for each of some settings."""
        if not isinstance(raw, dict) or not raw:
            raise Problems(Problem(route, f"must be a block of settings and their levels, not {said(raw)}"))
        return {
            name: self.tried(levels.parse, name, value, (*route, name))
            for name, value in raw.items()
            if self.tried(levels.known, name, (*route, name)) is not None
        }

    def _exclusion(self, raw: Any, route: Route) -> Exclusion | None:
        if not isinstance(raw, dict):
            raise Problems(Problem(route, f"must be a block of settings and a reason, not {said(raw)}"))
        reason = raw.get("reason")
        if not isinstance(reason, str) or not reason.strip():
            raise Problems(Problem(route, "cells are excluded without a reason", 'add reason: "..."'))
        where = self._condition({k: v for k, v in raw.items() if k != "reason"}, route)
        if len(raw) == 1:
            raise Problems(
                Problem(route, "this excludes every cell", "name the settings of the cells to exclude")
            )
        return Exclusion.model_construct(where=where, reason=reason)

    def _inclusion(self, raw: Any, route: Route) -> Inclusion:
        """Read a further cell, with `seeds` where it takes only some of the study's."""
        seeds = raw.get("seeds") if isinstance(raw, dict) else None
        if seeds is None:
            return Inclusion.model_construct(levels=self._levels(raw, route), seeds=None)
        repeat = self.raw.get("repeat")
        repeated = repeat.get("seeds", []) if isinstance(repeat, dict) else []
        if not isinstance(seeds, list) or not seeds or any(seed not in repeated for seed in seeds):
            message = f"must be some of the study's seeds, not {said(seeds)}"
            raise Problems(Problem((*route, "seeds"), message, f"choose from {repeated}"))
        given = {name: level for name, level in raw.items() if name != "seeds"}
        return Inclusion.model_construct(levels=self._levels(given, route), seeds=tuple(seeds))

    def _each(
        self, key: str, read_one: Callable[[Any, Route], T], inside: str | None = None
    ) -> tuple[T, ...]:
        """Read each entry of a list such as `exclude`."""
        raw = (self.raw[inside] if inside else self.raw).get(key, [])
        route: Route = (inside, key) if inside else (key,)
        if not isinstance(raw, list):
            self.problems.append(
                Problem(route, f"{key} must be a list, not {said(raw)}", f"write {key}: [...]")
            )
            return ()
        found = (self.tried(read_one, item, (*route, i)) for i, item in enumerate(raw))
        return tuple(item for item in found if item is not None)

    def _base(self, vary: dict[str, Axis]) -> None:
        """Give each varied setting its base level: what stands at the top, or the first varied value."""
        for name in sorted(vary, key=lambda name: "." in name):
            block, _, field = name.partition(".")
            inside = self.raw.get(block, {}) if field else self.raw
            if not isinstance(inside, dict):
                continue
            if (field or block) not in inside:
                self._fill(block, field, vary[name], name)
            elif name not in AXES:
                self._both(block, field, vary[name], name)

    def _both(self, block: str, field: str, axis: Axis, name: str) -> None:
        line = self.document.place((block, field) if field else (block,)).line
        first = levels.label(axis.values[0])
        way_out = f"take one of them out: without the fixed value the base is the first varied value, {first}"
        message = f"{name} is both fixed (line {line}) and varied"
        self.problems.append(Problem(("vary", name), message, way_out))

    def _fill(self, block: str, field: str, axis: Axis, name: str) -> None:
        """Write the first varied value where the base leaves a setting open."""
        if field and block in AXES:
            return  # whether the base has this setting depends on its technique: the design decides
        first = next((value for value in axis.values if value is not None), None)
        if first is None:
            return  # every value has a problem of its own
        inside = self.raw.setdefault(block, {}) if field else self.raw
        inside[field or block] = first
        route: Route = (block, field) if field else (block,)
        self.document.lines.setdefault(route, self.document.place(("vary", name, 0)).line or 1)

    def _words(self) -> None:
        for axis in [axis for axis in AXES if axis in self.raw]:
            raw = self.raw.pop(axis)
            level = self.tried(levels.parse, axis, raw, (axis,))
            if level is not None:
                self.raw[axis] = level

    def _repeat(self) -> None:
        repeat = self.raw.get("repeat")
        if isinstance(repeat, dict):
            found = self.tried(expanded, repeat, self.raw.get("compare"))
            self.raw["repeat"] = found or {"seeds": [0]}  # so that only the problem that was found is named

    def _compare(self) -> None:
        compare = self.raw.setdefault("compare", {})
        if not isinstance(compare, dict):
            return
        compare.setdefault("metric", self._usual_metric())
        compare["controls"] = self._each("controls", self._levels, "compare")
        if "baseline" in compare:
            compare["baseline"] = self.tried(self._levels, compare["baseline"], ("compare", "baseline")) or {}

    def _usual_metric(self) -> str:
        """Return the test loss of the first group."""
        score, data = self.raw.get("score"), self.raw.get("data")
        heldout = score.get("heldout") if isinstance(score, dict) else None
        groups = heldout.get("groups") if isinstance(heldout, dict) else None
        if isinstance(groups, list) and groups:
            return f"test.{groups[0]}.loss"
        embedded = isinstance(data, EmbeddedData) or (
            isinstance(data, dict) and data.get("source") == "embedded"
        )
        task = self.raw.get("task", "instruction")
        known = next(
            (groups for name, groups in EMBEDDED_GROUPS.items() if embedded and name == task), ("all",)
        )
        return f"test.{known[0]}.loss"

    def _checked(self, written: dict[str, Any]) -> Study | None:
        try:
            study = Study.model_validate(self.raw)
        except ValidationError as error:
            self.problems += translate(error, Study, self.raw)
            return None
        self.problems += list(coerced({k: v for k, v in written.items() if k not in _LEVELLED}, study))
        return study


_LEVELLED = ("vary", "exclude", "include", "compare", *AXES)
"""Parts whose values were checked one by one."""
