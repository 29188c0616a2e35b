"""Which trials may run side by side, and what each worker is told about its device and threads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from paribus.machine import Machine


@dataclass(frozen=True)
class Slot:
    """A place for one worker at a time; `environment` is what it sees beside what it inherits."""

    name: str
    environment: dict[str, str]


def slots(
    machine: Machine, max_workers: int | None = None, inherited: Mapping[str, str] | None = None
) -> tuple[Slot, ...]:
    """Return a place for each device of a GPU machine, or for each usable core of a CPU machine.

    `inherited` is this process's environment: a worker gets one of the devices that its
    CUDA_VISIBLE_DEVICES names (by index or by UUID), and never another. More workers than devices are not
    given out, since two trials on one device would measure each other.
    """
    if machine.device == "cpu":
        return tuple(
            Slot(f"core {n}", {"CUDA_VISIBLE_DEVICES": ""}) for n in range(max_workers or machine.cores)
        )
    devices = visible_devices(machine, os.environ if inherited is None else inherited)
    return tuple(
        Slot(f"device {device}", {"CUDA_VISIBLE_DEVICES": device, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
        for device in devices[: max_workers or len(devices)]
    )


def visible_devices(machine: Machine, inherited: Mapping[str, str]) -> list[str]:
    """Return the devices that may be used, in the words of CUDA_VISIBLE_DEVICES.

    CUDA reads its list up to the first entry it does not know, -1 being the usual one.
    """
    listed = inherited.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(index) for index in range(machine.devices)]
    devices: list[str] = []
    for entry in map(str.strip, listed.split(",")):
        if not entry or entry.startswith("-"):
            break
        devices.append(entry)
    return devices


def thread_environment(machine: Machine, workers: int) -> dict[str, str]:
    """Return what a worker's libraries read when they load: threads, and no progress bars in its log.

    One thread on a CPU, so that a rerun is identical bit for bit; on a GPU machine the cores are shared out.
    """
    threads = 1 if machine.device == "cpu" else max(1, machine.cores // max(1, workers))
    return {
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "PYTHONHASHSEED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
    }
