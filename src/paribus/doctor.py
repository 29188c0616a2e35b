"""What this machine can do: devices, number formats, and which level of each axis runs here, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paribus import probe
from paribus.machine import Machine
from paribus.record.provenance import LIBRARIES, installed
from paribus.sources.blocks import EmbeddedModel
from paribus.sources.models import locate
from paribus.techniques import AXES, Setting, Technique
from paribus.techniques.precision.native import NEEDS

FORMATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2")


def examine() -> dict[str, Any]:
    """Return the document that `paribus doctor --json` prints.

    Keys: `machine`, `machine_class`, `devices`, `libraries`, `formats` (name, stored, multiplied) and `axes`
    (axis -> levels, each with `runs`: native, emulated or no; `reason` and `way_out` where native does not).
    Levels are judged on the embedded base; a study's own model may have further obstacles.
    """
    machine, facts = probe.machine(), probe.facts()
    setting = Setting(model=locate(EmbeddedModel(), Path()).facts)
    return {
        "machine": machine.model_dump(mode="json"),
        "machine_class": machine.machine_class,
        "devices": facts["devices"],
        "libraries": {name: installed(name) for name in LIBRARIES},
        "formats": [_format(name, machine, facts["dtypes"]) for name in FORMATS],
        "axes": {
            axis: [_level(technique, machine, setting) for technique in techniques]
            for axis, techniques in AXES.items()
        },
    }


def _format(name: str, machine: Machine, dtypes: list[str]) -> dict[str, Any]:
    """Say whether torch stores a format here and whether the device multiplies in it."""
    kinds = {"float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}
    needs = {dtype: NEEDS[kind] for dtype, kind in kinds.items()}
    stored = name in dtypes or name == "float32"
    if name == "float32" or (
        machine.compute_capability and machine.compute_capability >= needs.get(name, (10, 0))
    ):
        multiplied = "native"
    else:
        multiplied = "emulated" if name in needs else "no"
    return {"name": name, "stored": stored, "multiplied": multiplied}


def _level(technique: type[Technique], machine: Machine, setting: Setting) -> dict[str, Any]:
    name = str(technique.model_fields["kind"].default) if "kind" in technique.model_fields else "any value"
    plain = technique.model_validate({})
    found: dict[str, Any] = {
        "level": name,
        "runs": "native",
        "reason": None,
        "way_out": None,
        "paper": technique.paper,
    }
    obstacle = plain.obstacle(machine, setting)
    if obstacle is None:
        return found
    found |= {"runs": "no", "reason": obstacle.reason, "way_out": obstacle.way_out}
    if "compute" in technique.model_fields:
        emulated = plain.model_copy(update={"compute": "emulated"})
        if emulated.obstacle(machine, setting) is None:
            found["runs"] = "emulated"
    return found
