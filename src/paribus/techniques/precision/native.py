"""Low precision in hardware: where it runs, and what was seen of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle

if TYPE_CHECKING:
    import torch

_EMULATED: Final = "set compute: emulated, which rounds in the same places and computes in fp32"

NEEDS: Final = {
    "tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3), "fp8": (8, 9),
    "mxfp8": (10, 0), "mxfp6": (10, 0), "mxfp4": (10, 0), "nvfp4": (10, 0),
}  # fmt: skip
"""The least compute capability with matrix products in a format (NVIDIA, CUDA C++ programming guide)."""


def obstacle(kind: str, machine: Machine) -> Obstacle | None:
    """Say why a format cannot be multiplied natively on this machine, or None."""
    need = ".".join(map(str, NEEDS[kind]))
    if machine.device != "cuda":
        return Obstacle(
            f"native {kind} needs a CUDA device; this machine has {machine.device} only", _EMULATED
        )
    capability = machine.compute_capability or (0, 0)
    if capability < NEEDS[kind]:
        found = ".".join(map(str, capability))
        reason = f"native {kind} matrix products need compute capability {need}; {machine.name} has {found}"
        return Obstacle(reason, _EMULATED)
    if kind not in ("tf32", "bf16", "fp16"):
        return Obstacle(f"native {kind} is not part of this version, whatever the device", _EMULATED)
    return None


@contextmanager
def as_trained(kind: str) -> Iterator[None]:
    """Compute in a half precision while a model is scored, as autocast does in training."""
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind)
    if dtype is None:
        yield
        return
    with torch.autocast("cuda" if torch.cuda.is_available() else "cpu", dtype):
        yield


@contextmanager
def watched(model: Any, live: Live) -> Iterator[torch.nn.Module]:
    """Count in which dtype the first linear layer's outputs come while training under autocast."""
    import torch

    seen: Counter[str] = Counter()
    live.observed["precision"] = seen

    def see(module: torch.nn.Module, _: Any, output: torch.Tensor) -> None:
        if module.training:
            seen[str(output.dtype).removeprefix("torch.")] += 1

    linear = next((module for module in model.modules() if isinstance(module, torch.nn.Linear)), None)
    handle = linear.register_forward_hook(see) if linear is not None else None
    try:
        yield model
    finally:
        if handle is not None:
            handle.remove()


def evidence(kind: str, dtype: str, live: Live) -> dict[str, Any]:
    """Return the dtypes seen; raises NoEffect where not all of them are the one asked for."""
    seen: Counter[str] = live.observed["precision"]
    if set(seen) != {dtype}:
        found = ", ".join(sorted(seen)) or "nothing"
        raise NoEffect(kind, f"a linear layer gave {found} where {dtype} was asked for", _EMULATED)
    return {"compute": "native", "linear_output_dtype": dtype, "forward_passes_seen": seen[dtype]}
