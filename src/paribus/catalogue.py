"""Every technique as a reader meets it: its settings, where it runs and its paper, read from the code."""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from paribus.errors import ParibusError, nearest
from paribus.machine import Machine
from paribus.plan.study import Study
from paribus.sources.blocks import EmbeddedModel
from paribus.sources.models import locate
from paribus.techniques import AXES, Setting, Technique


@dataclass(frozen=True)
class Entry:
    """One technique under the name a study gives it, and whether it runs on a machine.

    `runs` is native, emulated or no; `reason` and `way_out` stand where it does not run natively.
    """

    axis: str
    name: str
    technique: type[Technique]
    runs: Literal["native", "emulated", "no"]
    reason: str | None = None
    way_out: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry as plain values."""
        return {
            "axis": self.axis,
            "name": self.name,
            "runs": self.runs,
            "reason": self.reason,
            "way_out": self.way_out,
            "paper": self.technique.paper or None,
            "about": inspect.cleandoc(self.technique.__doc__ or ""),
            "settings": [_setting(name, info) for name, info in settings(self.technique).items()],
        }

    def example(self) -> str:
        """Write the technique as it stands in a study, with its first settings spelled out."""
        given = {
            name: None if info.is_required() else info.get_default(call_default_factory=True)
            for name, info in settings(self.technique).items()
        }
        shown = [f"{name}: {written(value)}" for name, value in list(given.items())[:4]]
        kind = [f"kind: {self.name}"] if "kind" in self.technique.model_fields else []
        return f"{self.axis}: {{{', '.join([*kind, *shown])}}}"


def entries(machine: Machine, setting: Setting | None = None) -> list[Entry]:
    """List every technique in the order of the axes, judged on a model; without one on the embedded base."""
    setting = setting or Setting(model=locate(EmbeddedModel(), Path()).facts)
    return [
        _entry(axis, technique, machine, setting) for axis, chosen in AXES.items() for technique in chosen
    ]


def setting_of(path: Path) -> Setting:
    """Return a study's base cell as techniques see it."""
    study = Study.read(path)
    chosen = {axis: getattr(study, axis) for axis in AXES}
    return Setting(model=locate(study.model, study.folder).facts, chosen=chosen, task=study.task)


def named(name: str, listed: list[Entry]) -> list[Entry]:
    """Return the techniques of that name or axis; raises ParibusError with the nearest one."""
    found = [one for one in listed if name.lower() in _names(one)]
    if not found:
        known = {known for one in listed for known in (one.name, one.axis)}
        raise ParibusError(f"there is no technique {name!r}.", way_out=nearest(name, known))
    return found


def _names(entry: Entry) -> tuple[str, ...]:
    """A level, its axis, both, or the class: `lora`, `tuning`, `tuning.lora`, `accumulation`."""
    return entry.name, entry.axis, f"{entry.axis}.{entry.name}", entry.technique.__name__.lower()


def settings(technique: type[Technique]) -> dict[str, FieldInfo]:
    """Return the fields a study can set, without the word that names the technique."""
    return {name: info for name, info in technique.model_fields.items() if name != "kind"}


def _entry(axis: str, technique: type[Technique], machine: Machine, setting: Setting) -> Entry:
    """Judge a technique at its default settings; one that needs a setting given is judged by no obstacle."""
    kind = technique.model_fields.get("kind")
    name = str(kind.default) if kind else axis
    if any(info.is_required() for info in technique.model_fields.values()):
        return Entry(axis, name, technique, "native")
    plain = technique.model_validate({})
    obstacle = plain.obstacle(machine, setting)
    if obstacle is None:
        return Entry(axis, name, technique, "native")
    runs: Literal["emulated", "no"] = "no"
    if "compute" in technique.model_fields:
        emulated = plain.model_copy(update={"compute": "emulated"})
        runs = "no" if emulated.obstacle(machine, setting) else "emulated"
    return Entry(axis, name, technique, runs, obstacle.reason, obstacle.way_out)


def _setting(name: str, info: FieldInfo) -> dict[str, Any]:
    default = None if info.is_required() else info.get_default(call_default_factory=True)
    plain = default if default is None or isinstance(default, bool | int | float | str) else list(default)
    return {"name": name, "values": values(info), "default": plain, "required": info.is_required()}


def values(info: FieldInfo) -> str:
    """Say which values a field takes: `nf4 | fp4`, `a number, > 0`."""
    bounds = [
        f"{sign} {written(getattr(rule, attribute))}"
        for rule in info.metadata
        for attribute, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
        if hasattr(rule, attribute)
    ]
    return ", ".join([_taken(info.annotation), *bounds])


def _taken(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(written(value) for value in inner)
    if origin in (Union, types.UnionType):
        return " | ".join(_taken(one) for one in inner)
    if origin in (tuple, list):
        return "a list"
    words = {int: "a whole number", float: "a number", bool: "true | false", str: "a text", Path: "a path"}
    return {type(None): "null", dict: "a block"}.get(origin or annotation) or words.get(annotation, "a block")


def written(value: Any) -> str:
    """Write a value as it stands in a study file."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(written, value))}]"
    return str(value)
