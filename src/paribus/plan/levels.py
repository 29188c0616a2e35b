"""The settings that a study can fix or vary, by dotted name, and the levels they can take.

A level is one value of a setting: a technique (`tuning`), a block (`model`) or a plain value
(`training.learning_rate`). What a study writes as a word, a number or a block becomes the same level.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from paribus.errors import nearest
from paribus.plan.complaints import Problem, Problems, coerced, said, translate
from paribus.plan.trial import Trial
from paribus.plan.yaml_lines import Route
from paribus.techniques import AXES, Settings, Technique

Draft = dict[str, Any]
"""A cell being put together: each block of a trial by name (`model`, `data`, `training`, the axes)."""

BLOCKS = tuple(name for name in Trial.model_fields if name not in ("content", "seed"))
ABSENT = "-"
"""The label of a setting that does not exist in a cell: `tuning.r` where every weight trains."""
_NAMING = ("kind", "source")


@cache
def names() -> tuple[str, ...]:
    """List every setting that can be fixed or varied."""
    fields = ((block, field) for block in BLOCKS for owner in owners(block) for field in owner.model_fields)
    dotted = (f"{block}.{field}" for block, field in fields if field not in _NAMING)
    return tuple(dict.fromkeys([*BLOCKS, *dotted]))


@cache
def owners(block: str) -> tuple[type[Settings], ...]:
    """List the classes a block can be: every technique of an axis, every source of a model."""
    annotation = Trial.model_fields[block].annotation
    return tuple(
        c for c in (annotation, *get_args(annotation)) if isinstance(c, type) and issubclass(c, Settings)
    )


@cache
def kinds(block: str) -> tuple[str, ...]:
    """List the words an axis takes; none where it takes numbers."""
    return tuple(c.model_fields["kind"].default for c in AXES.get(block, ()) if "kind" in c.model_fields)


def shorthand(block: str) -> str | None:
    """Return the field that a bare number sets on an axis; None where it takes none."""
    return AXES[block][0].shorthand if block in AXES else None


def known(name: str, route: Route) -> str:
    """Return the name of a setting that exists; raises Problems with the nearest valid one."""
    if name == "task":
        raise Problems(
            Problem(route, "the task of a study is fixed", "set it at the top: `task: instruction`")
        )
    if name in ("seed", "seeds", "repeat.seeds"):
        raise Problems(Problem(route, "seeds are repeated, not varied", "list them under repeat.seeds"))
    if name not in names():
        raise Problems(Problem(route, f"unknown setting {name!r}", suggestion(name, BLOCKS)))
    return name


def suggestion(name: str, among: Iterable[str]) -> str:
    """Say which setting was probably meant: a field without its block, a field of a block, or a name."""
    block = name.partition(".")[0]
    inside = [dotted for dotted in names() if dotted.endswith(f".{name}")]
    if inside:
        return f"Did you mean {' or '.join(map(repr, inside))}?"
    if "." in name and block in BLOCKS:
        fields = (dotted.removeprefix(f"{block}.") for dotted in names() if dotted.startswith(f"{block}."))
        return nearest(name.removeprefix(f"{block}."), fields)
    return nearest(name, among)


def parse(name: str, raw: Any, route: Route) -> Any:
    """Check one value of a setting and return its level; raises Problems placed at `route`."""
    block, _, field = name.partition(".")
    if field:
        return _checked(_field_adapter(block, field), None, raw, route)
    if block in AXES:
        raw = spelled_out(block, raw, route)
    return _checked(_block_adapter(block), Trial.model_fields[block].annotation, raw, route)


def spelled_out(axis: str, raw: Any, route: Route) -> Any:
    """Turn the word form of a level into its block; raises Problems for a word or type the axis has not."""
    words = kinds(axis)
    if isinstance(raw, str) and words:
        if raw not in words:
            raise Problems(Problem(route, f"unknown {axis} {raw!r}", nearest(raw, words)))
        return {"kind": raw}
    number = isinstance(raw, int | float) and not isinstance(raw, bool)
    if isinstance(raw, dict | Technique) or (number and not words):
        return raw
    wanted = f"a word ({', '.join(words)}) or a block" if words else "a number or a block"
    way_out = f"to compare several, list them under vary.{axis}" if isinstance(raw, list) else None
    raise Problems(Problem(route, f"{axis} must be {wanted}, not {said(raw)}", way_out))


def _checked(adapter: TypeAdapter[Any], owner: Any, raw: Any, route: Route) -> Any:
    try:
        level = adapter.validate_python(raw)
    except ValidationError as error:
        raise Problems(*translate(error, owner, raw, route)) from error
    changed = list(coerced(raw, level, route))
    if changed:
        raise Problems(*changed)
    return level


@cache
def _block_adapter(block: str) -> TypeAdapter[Any]:
    return _adapter(Trial.model_fields[block])


@cache
def _field_adapter(block: str, field: str) -> TypeAdapter[Any]:
    info = next(c.model_fields[field] for c in owners(block) if field in c.model_fields)
    return _adapter(info)


def _adapter(info: FieldInfo) -> TypeAdapter[Any]:
    """Return a check of one field outside its model; its annotation is only known at run time."""
    annotated: Any = Annotated
    return TypeAdapter(annotated[info.annotation, info])


def value_of(draft: Mapping[str, Any], name: str) -> Any:
    """Return the level a draft has for a setting; raises AttributeError where the setting does not exist."""
    block, _, field = name.partition(".")
    return getattr(draft[block], field) if field else draft[block]


def applies(draft: Mapping[str, Any], name: str) -> bool:
    """Say whether a setting exists in a draft: `tuning.r` only where the tuning has one."""
    block, _, field = name.partition(".")
    return not field or field in type(draft[block]).model_fields


def changed(draft: Draft, name: str, level: Any) -> Draft:
    """Return the draft with one setting changed; raises ValidationError where its block forbids it."""
    block, _, field = name.partition(".")
    if not field:
        return {**draft, block: level}
    old = draft[block]
    given = {f: getattr(old, f) for f in type(old).model_fields if f in old.model_fields_set or f in _NAMING}
    return {**draft, block: type(old).model_validate(given | {field: level})}


def matches(pattern: Any, level: Any) -> bool:
    """Say whether a level is what a condition names: its kind, and every field the condition gives."""
    if isinstance(pattern, Settings):
        same = type(pattern) is type(level)
        return same and all(getattr(pattern, f) == getattr(level, f) for f in pattern.model_fields_set)
    return pattern == level


def holds(condition: Mapping[str, tuple[Any, ...]], draft: Mapping[str, Any]) -> bool:
    """Say whether a draft meets a condition: for each setting named, one of its values matches."""
    return all(
        applies(draft, name) and any(matches(pattern, value_of(draft, name)) for pattern in patterns)
        for name, patterns in condition.items()
    )


def same(one: Any, other: Any) -> bool:
    """Say whether two levels of a setting are one: 1 and 1.0, `lora` and `{kind: lora, r: 8}`."""
    return identity_of(one) == identity_of(other)


def identity_of(level: Any) -> Any:
    """Return what two equal levels have in common."""
    if isinstance(level, Settings):
        return (type(level).__name__, repr(level.canonical()))
    return repr(float(level)) if isinstance(level, int | float) else unicodedata.normalize("NFC", repr(level))


def label(level: Any) -> str:
    """Name a level in a table."""
    if isinstance(level, Technique):
        return level.label
    if isinstance(level, Settings):
        return " ".join(_parts(level))
    if isinstance(level, float):
        short = f"{level:g}"
        return short if float(short) == level else repr(level)
    if isinstance(level, tuple):
        return ",".join(map(label, level))
    return "none" if level is None else str(level)


def _parts(level: Settings) -> Iterator[str]:
    """Name a block by its source and whatever differs from the default."""
    for name, info in type(level).model_fields.items():
        value = getattr(level, name)
        if name in _NAMING:
            yield str(value)
        elif info.is_required() or value != info.default:
            yield f"{name}={label(value)}"
