"""Low precision in hardware: where it runs, and what was seen of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle

if TYPE_CHECKING:
    import torch

_OBSERVED: Final = "precision"
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
    if kind not in ("tf32", "bf16", "fp16", "fp8"):
        return Obstacle(f"native {kind} is not part of this version, whatever the device", _EMULATED)
    return None


@contextmanager
def as_trained(kind: str, live: Live) -> Iterator[None]:
    """Compute as in training while a model is scored: under autocast, and in 8 bits where layers are."""
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}.get(kind)
    device, ran = "cuda" if torch.cuda.is_available() else "cpu", live.observed[_OBSERVED]
    ran.scored = True
    try:
        with torch.autocast(device, dtype, enabled=dtype is not None), tf32(kind == "tf32"):
            yield
    finally:
        ran.scored = False


@contextmanager
def watched(model: Any, live: Live) -> Iterator[torch.nn.Module]:
    """Count the matrix products of the first optimizer step by their dtypes."""
    from paribus.techniques.precision.traced import Ran, first_step

    ran = live.observed[_OBSERVED] = Ran()
    with first_step(model, ran):
        yield model


def after_step(live: Live) -> None:
    """Count no further: one step is proof."""
    live.observed[_OBSERVED].end()


@contextmanager
def tf32(wanted: bool = True) -> Iterator[None]:
    """Let matrix units read 19 bits of fp32 numbers, and put the setting back."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if wanted else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def evidence(kind: str, dtype: str, live: Live) -> dict[str, Any]:
    """Return how many products ran in which dtype; raises NoEffect where most were not in the one asked for.

    What hardware falls back to silently shows here: the dtypes are those of the operands that the products
    were given, not those that were set. An fp8 level multiplies what it leaves in high precision in bf16.
    """
    ran = live.observed[_OBSERVED]
    asked, total = ran.dtypes[dtype], sum(ran.dtypes.values())
    if not total or (asked == 0 if kind == "fp8" else 2 * asked < total):
        found = ", ".join(f"{count} in {name}" for name, count in ran.dtypes.most_common()) or "none"
        reason = f"of the matrix products of the first step {asked} ran in {dtype} ({found})"
        raise NoEffect(kind, reason, _EMULATED)
    return {"compute": "native", "matrix_products_of_first_step": dict(ran.dtypes.most_common())}
