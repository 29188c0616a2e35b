"""Say what is wrong with a study in plain words: one problem a line, each with its place and a way out."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from paribus.errors import StudyError, nearest
from paribus.plan.yaml_lines import Document, Route
from paribus.techniques import Settings


@dataclass(frozen=True)
class Problem:
    """One thing a study may not say: where it stands, the value and the rule, what to do instead."""

    route: Route
    message: str
    way_out: str | None = None


class Problems(Exception):
    """Several problems at once, not yet tied to a file."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*(problem.message for problem in problems))
        self.problems = problems


def as_error(document: Document, problems: Iterable[Problem]) -> StudyError:
    """Make one error of all problems, in the order of their lines."""
    unique = list(dict.fromkeys(problems))
    unique.sort(key=lambda problem: document.place(problem.route).line or 0)
    errors = [StudyError(p.message, way_out=p.way_out, place=document.place(p.route)) for p in unique]
    if len(errors) == 1:
        return errors[0]
    first, rest = errors[0], "\n".join(map(str, errors[1:]))
    way_out = f"{first.way_out}\n{rest}" if first.way_out else rest
    return StudyError(first.message, way_out=way_out, place=first.place)


def translate(error: ValidationError, owner: Any, raw: Any, route: Route = ()) -> list[Problem]:
    """Put pydantic's findings in plain words.

    `owner` is the class or annotation that `raw` was checked against, `route` where `raw` stands. Findings
    on the alternatives of one value (a word or a number) become one problem.
    """
    found: dict[tuple[Route, str], list[str]] = {}
    ways: dict[tuple[Route, str], str | None] = {}
    for detail in error.errors(include_url=False):
        inner, rest, value = _follow(raw, detail["loc"])
        message, way_out = _plain(_Finding(detail, owner, route + inner, tuple(rest), value))
        rule = message if detail["type"] in ("extra_forbidden", "missing", "value_error") else "rule"
        at = route + inner + _blamed(message, value if rule == message else None)
        found.setdefault((at, rule), []).append(message)
        ways.setdefault((at, rule), way_out)
    return [Problem(at, _joined(messages), ways[at, rule]) for (at, rule), messages in found.items()]


def _blamed(message: str, block: Any) -> Route:
    """Return the last key of a block that a message about the whole block names, where it names several."""
    keys = [key for key in block if re.search(rf"\b{key}\b", message)] if isinstance(block, dict) else []
    return (keys[-1],) if len(keys) > 1 else ()


def coerced(raw: Any, checked: Any, route: Route = ()) -> Iterator[Problem]:
    """Find text and yes/no values that validation took for numbers: a number is written as one."""
    if isinstance(raw, dict):
        for key, item in raw.items():
            inner = checked.get(key) if isinstance(checked, dict) else getattr(checked, key, None)
            yield from coerced(item, inner, (*route, key))
    elif isinstance(raw, list) and isinstance(checked, tuple | list):
        for index, (item, inner) in enumerate(zip(raw, checked, strict=False)):
            yield from coerced(item, inner, (*route, index))
    elif isinstance(raw, str | bool) and isinstance(checked, int | float) and type(raw) is not type(checked):
        way_out = "write it without quotes" if isinstance(raw, str) else None
        yield Problem(route, f"{_name(route)} must be a number, not {said(raw)}", way_out)


def said(value: Any) -> str:
    """Name a value the way its writer would: `the word 'x'`, `the number 3`, `a list`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the yes/no value {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the word {value!r}" if value and not re.search(r"\s", value) else f"the text {value!r}"
    return "a list" if isinstance(value, list | tuple) else "a block"


_TYPES = {
    "int": "a whole number", "float": "a number", "string": "a word", "bool": "true or false",
    "tuple": "a list", "list": "a list", "dict": "a block of keys and values",
    "model": "a block of keys and values", "model_attributes": "a block of keys and values", "path": "a path",
    "none": "left out",
}  # fmt: skip
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("greater than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


@dataclass(frozen=True)
class _Finding:
    """One of pydantic's findings, at the written `value` that `route` leads to, about `rest` below it."""

    detail: ErrorDetails
    owner: Any
    route: Route
    rest: tuple[str | int, ...]
    value: Any

    @property
    def context(self) -> dict[str, Any]:
        return self.detail.get("ctx", {})

    @property
    def name(self) -> str:
        return _name(self.rest or self.route)


Said = tuple[str, str | None]
"""A message and a way out."""


def _plain(finding: _Finding) -> Said:
    """Say one finding in plain words."""
    kind = finding.detail["type"]
    if kind in _WORDED:
        return _WORDED[kind](finding)
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        wanted = f"{words} {finding.context[bound]:g}"
    else:
        stems = (words for stem, words in _TYPES.items() if kind.startswith(f"{stem}_"))
        wanted = next(stems, f"valid ({finding.detail['msg'].lower()})")
    return f"{finding.name} must be {wanted}, not {said(finding.value)}", None


def _unknown_key(finding: _Finding) -> Said:
    key = str(finding.detail["loc"][-1])
    valid = [name for c in _reached(finding.owner, finding.detail["loc"][:-1]) for name in c.model_fields]
    return f"unknown key {key!r}" + _within(finding.route[:-1]), nearest(key, valid)


def _missing_key(finding: _Finding) -> Said:
    key = finding.detail["loc"][-1]
    return f"the key {str(key)!r} is missing" + _within(finding.route), f"add `{key}: ...`"


def _untagged(finding: _Finding) -> Said:
    key = str(finding.context["discriminator"]).strip("'")
    reached = _reached(finding.owner, finding.detail["loc"])
    valid = sorted(str(tag) for c in reached for tag in _tags(c, key))
    way_out = f"add {key}: {' or '.join(valid)}" if valid else f"add {key}: ..."
    return f"{finding.name} does not say its {key}", way_out


def _unknown_word(finding: _Finding) -> Said:
    """Say what a fixed set of words holds, and which of them was probably meant."""
    context, name, value = finding.context, finding.name, finding.value
    listed = str(context.get("expected", context.get("expected_tags", "")))
    valid = re.findall(r"'([^']*)'", listed) or [listed]
    if isinstance(value, dict) and "discriminator" in context:
        name = str(context["discriminator"]).strip("'")
        value = value.get(name)
    message = f"{name} must be {' or '.join(valid)}, not {said(value)}"
    return message, nearest(value, valid) if isinstance(value, str) else None


_WORDED: dict[str, Callable[[_Finding], Said]] = {
    "extra_forbidden": _unknown_key,
    "missing": _missing_key,
    "union_tag_not_found": _untagged,
    "union_tag_invalid": _unknown_word,
    "literal_error": _unknown_word,
    "value_error": lambda finding: (
        str(finding.context["error"]),
        getattr(finding.context["error"], "way_out", None),
    ),
    "too_short": lambda finding: (f"{finding.name} is empty", "give it at least one entry"),
    "finite_number": lambda finding: (f"{finding.name} must be a finite number", None),
}


def _joined(messages: list[str]) -> str:
    """Join what the alternatives of one value ask for: `must be epoch or a whole number, not ...`."""
    if len(set(messages)) == 1:
        return messages[0]
    parts = [re.fullmatch(r"(.+?) must be (.+), not (.+)", message) for message in messages]
    if not all(parts):
        return "; ".join(dict.fromkeys(messages))
    matches = [part for part in parts if part]
    wanted = " or ".join(dict.fromkeys(part[2] for part in matches))
    return f"{matches[0][1]} must be {wanted}, not {matches[0][3]}"


def _follow(raw: Any, location: Sequence[str | int]) -> tuple[Route, list[str | int], Any]:
    """Walk a pydantic location through what was written.

    Returns the route to the innermost written value, the fields beyond it, and that value. Names of union
    members in the location, which nobody wrote, are passed over.
    """
    route: list[str | int] = []
    rest: list[str | int] = []
    for step in location:
        inner = _inside(raw, step)
        if inner is not None:
            raw, rest = inner[0], []
        else:
            if not isinstance(raw, dict | list) and isinstance(step, str) and step.isidentifier():
                rest.append(step)
            continue
        route.append(step)
    return tuple(route), rest, raw


def _inside(raw: Any, step: str | int) -> tuple[Any] | None:
    if isinstance(raw, dict) and step in raw:
        return (raw[step],)
    if isinstance(raw, list) and isinstance(step, int) and step < len(raw):
        return (raw[step],)
    return None


def _reached(owner: Any, location: Sequence[str | int]) -> list[type[Settings]]:
    """List the classes that what a location leads to can be."""
    classes = list(_classes(owner))
    for step in location:
        tagged = [c for c in classes if step in _tags(c)]
        fields = [c.model_fields[step] for c in classes if isinstance(step, str) and step in c.model_fields]
        if tagged and len(classes) > 1:
            classes = tagged
        elif fields:
            classes = [inner for info in fields for inner in _classes(info.annotation)]
    return classes


def _classes(annotation: Any) -> Iterator[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    elif get_origin(annotation) is not Literal:
        for inner in get_args(annotation):
            if isinstance(inner, type | types.UnionType | types.GenericAlias) or typing.get_origin(inner):
                yield from _classes(inner)


def _tags(owner: type[Settings], *keys: str) -> set[Any]:
    """Return the words by which a union tells its members apart."""
    return {owner.model_fields[f].default for f in keys or ("kind", "source") if f in owner.model_fields}


def _name(route: Sequence[str | int]) -> str:
    words = [str(step) for step in route if isinstance(step, str)]
    if not words:
        return "the value"
    return words[-1] if isinstance(route[-1], str) else f"each value of {words[-1]}"


def _within(route: Route) -> str:
    words = [str(step) for step in route if isinstance(step, str)]
    return f" in {'.'.join(words)}" if words else ""
