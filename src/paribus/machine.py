"""What this machine can compute with, as a frozen value written into every result.

Nothing here imports torch: facts about accelerators are asked of a child process by `paribus.probe`.
"""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

GIB = 1024**3


class Machine(BaseModel):
    """One kind of machine: what a trial of a study would run on.

    `memory_bytes` is the memory of one device (the host's memory on a CPU), `compute_capability` that of
    an NVIDIA device, `cores` the CPU cores this process may use.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["cpu", "cuda"] = "cpu"
    name: str
    memory_bytes: int
    cores: int
    devices: int = 1
    compute_capability: tuple[int, int] | None = None
    limit_gib: float | None = None
    """The most memory that a study lets a trial allocate; None where the device's own is the limit."""

    def limited(self, gib: float | None) -> Machine:
        """Return this machine as a trial with a memory limit sees it."""
        return self if gib is None else self.model_copy(update={"limit_gib": gib})

    @property
    def machine_class(self) -> str:
        """Name what out-of-memory and unsupported results depend on: device, memory and capability."""
        capability = ".".join(map(str, self.compute_capability)) if self.compute_capability else "none"
        memory = f"{round(self.memory_bytes / GIB)}GiB"
        if self.limit_gib is not None:
            memory += f" limited to {self.limit_gib:g}GiB"
        return f"{self.device}/{self.name}/{memory}/{capability}"


@lru_cache(maxsize=1)
def host() -> Machine:
    """Describe the CPU side of this machine."""
    import psutil

    return Machine(name=_cpu_name(), memory_bytes=psutil.virtual_memory().total, cores=usable_cores())


def usable_cores() -> int:
    """Count the CPU cores this process may run on, respecting its affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.split(":", 1)[1].split())
    return platform.processor() or platform.machine()
