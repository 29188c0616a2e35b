"""What the config classes of the installed peft take, read from its source: planning imports no torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, reduce
from importlib.util import find_spec
from operator import or_
from pathlib import Path
from typing import Any, Final, Literal

_ROOT: Final = "PeftConfig"
NONE: Final = type(None)
_PLAIN: Final[dict[str, Any]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "None": NONE,
    "dict": dict[str, Any],
    "list": list[Any],
    "tuple": tuple[Any, ...],
}


@dataclass(frozen=True)
class Signature:
    """The settings of one config class by name, each with the type that a value must have."""

    name: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class _Class:
    """One class of the source: its parents, its annotated fields, the arguments of its own `__init__`."""

    bases: tuple[str, ...]
    fields: dict[str, Any]


@cache
def signatures() -> dict[str, Signature]:
    """Return the config class of every method, by name; empty where peft is not installed."""
    classes = {name: found for file in _files() for name, found in _classes(file)}
    own = {"PeftConfigMixin", _ROOT, "PromptLearningConfig", "LycorisConfig"}
    return {
        name: Signature(name, _settings(name, classes))
        for name in sorted(classes)
        if name not in own and _ROOT in _ancestors(name, classes)
    }


def _files() -> Iterator[Path]:
    spec = find_spec("peft")  # finds, does not import
    if spec is None or spec.origin is None:
        return
    root = Path(spec.origin).parent
    yield from (root / "config.py", root / "tuners" / "lycoris_utils.py")
    yield from sorted((root / "tuners").glob("*/config.py"))


def _classes(file: Path) -> Iterator[tuple[str, _Class]]:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
            fields = {
                line.target.id: _type(line.annotation)
                for line in node.body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            }
            yield node.name, _Class(bases, fields)


def _ancestors(name: str, classes: dict[str, _Class]) -> list[str]:
    """List a class and what it inherits from, the furthest first."""
    if name not in classes:
        return []
    above = [one for base in classes[name].bases for one in _ancestors(base, classes)]
    return [*dict.fromkeys(above), name]


def _settings(name: str, classes: dict[str, _Class]) -> dict[str, Any]:
    above = (classes[one] for one in _ancestors(name, classes))
    merged: dict[str, Any] = {}
    for one in above:
        merged |= one.fields
    return merged


def _type(node: ast.expr) -> Any:
    """Turn a written annotation into the type it means; what is a class of peft's own admits any value."""
    match node:
        case ast.Constant(value=None):
            return NONE
        case ast.Constant(value=str(text)):
            return _type(ast.parse(text, mode="eval").body)
        case ast.Name(id=name):
            return _PLAIN.get(name, Any)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _type(left) | _type(right)
        case ast.Subscript(value=ast.Name(id=outer), slice=inner):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return _composed(outer, parts)
    return Any


def _composed(outer: str, parts: list[ast.expr]) -> Any:
    if outer == "Literal":
        return Literal[tuple(part.value for part in parts if isinstance(part, ast.Constant))]
    inner = [_type(part) for part in parts]
    if outer == "Optional":
        return inner[0] | None
    if outer == "Union":
        return reduce(or_, inner)
    if outer == "list":
        return list[inner[0]]
    return _PLAIN.get(outer, Any)
