"""Memory that is not there: how an allocator says so, and giving back what a failed try left behind."""

from __future__ import annotations

import ctypes
import gc
import re
import sys

import torch

from paribus.record.result import OutOfMemory


def out_of_memory(error: BaseException, phase: str) -> OutOfMemory | None:
    """Recognise exhausted memory on a GPU or CPU and read the sizes from its words; None for other errors.

    What an error was raised from counts too: a library may tell of it in words of its own.
    """
    found = _read(error, phase)
    cause = error.__cause__ or error.__context__
    return found if found or cause is None else out_of_memory(cause, phase)


def _read(error: BaseException, phase: str) -> OutOfMemory | None:
    words = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        asked = re.search(r"Tried to allocate ([\d.]+) (\w+)", words)
        limit = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None
        unit = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
        size = int(float(asked[1]) * unit[asked[2]]) if asked and asked[2] in unit else None
        return OutOfMemory(phase=phase, requested_bytes=size, limit_bytes=limit)
    if isinstance(error, MemoryError) or words == "can't start new thread":  # no room for its stack
        return OutOfMemory(phase=phase)
    if "DefaultCPUAllocator" in words:
        asked = re.search(r"tried to allocate (\d+) bytes", words)
        return OutOfMemory(phase=phase, requested_bytes=int(asked[1]) if asked else None)
    return None


def give_back() -> None:
    """Free what nothing refers to any more, cycles included, and hand it to the device or the system."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone keeps freed memory and has this
        if trim is not None:
            trim(0)
