"""What this machine can do: devices, number formats, and which level of each axis runs here, and how."""

from __future__ import annotations

from typing import Any

from paribus import catalogue, probe
from paribus.machine import Machine
from paribus.record.provenance import LIBRARIES, installed
from paribus.techniques import AXES
from paribus.techniques.precision.native import NEEDS

FORMATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2")


def examine() -> dict[str, Any]:
    """Return the document that `paribus doctor --json` prints.

    Keys: `machine`, `machine_class`, `devices`, `libraries`, `formats` (name, stored, multiplied) and `axes`
    (axis -> levels, each with `runs`: native, emulated or no; `reason` and `way_out` where native does not).
    Levels are judged on the embedded base; a study's own model may have further obstacles.
    """
    machine, facts = probe.machine(), probe.facts()
    listed = catalogue.entries(machine)
    return {
        "machine": machine.model_dump(mode="json"),
        "machine_class": machine.machine_class,
        "devices": facts["devices"],
        "libraries": {name: installed(name) for name in LIBRARIES},
        "formats": [_format(name, machine, facts["dtypes"]) for name in FORMATS],
        "axes": {axis: [_level(entry) for entry in listed if entry.axis == axis] for axis in AXES},
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


def _level(entry: catalogue.Entry) -> dict[str, Any]:
    return {
        "level": "any value" if entry.name == entry.axis else entry.name,
        "runs": entry.runs,
        "reason": entry.reason,
        "way_out": entry.way_out,
        "paper": entry.technique.paper,
    }
