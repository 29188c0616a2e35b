"""A limit on the memory of a trial, so that what does not fit fails here as it would on a smaller device."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from paribus.machine import GIB
from paribus.techniques import NoEffect

STATUS = Path("/proc/self/status")


def limit_bytes(gib: float | None) -> int | None:
    """Return a limit in bytes."""
    return None if gib is None else round(gib * GIB)


@contextmanager
def limited(gib: float | None) -> Iterator[None]:
    """Let this process allocate so much and no more: of its GPU, or on a CPU beyond what it holds by now.

    On a CPU an allocation beyond the limit fails as one does where the memory is used up. Raises NoEffect
    where the system keeps no count of a process's data (Linux alone does).
    """
    if gib is None:
        yield
    elif torch.cuda.is_available():
        with _on_gpu(gib):
            yield
    else:
        with _on_cpu(gib):
            yield


@contextmanager
def _on_gpu(gib: float) -> Iterator[None]:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, gib * GIB / total))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def _on_cpu(gib: float) -> Iterator[None]:
    found = re.search(r"VmData:\s+(\d+) kB", STATUS.read_text()) if STATUS.exists() else None
    if found is None:
        raise NoEffect("resources", "this system cannot limit a process's memory", "take memory_gib out")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(found[1]) * 1024 + round(gib * GIB), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
