"""Low precision in hardware: where it runs, and what was seen of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle
from paribus.techniques.precision.mfu import mfu

if TYPE_CHECKING:
    import torch

    from paribus.techniques.precision.traced import Ran

_OBSERVED: Final = "precision"
_EMULATED: Final = "set compute: emulated, which rounds in the same places and computes in fp32"
_SHOWN: Final = 3
"""How many kernels a proof names."""

NEEDS: Final = {
    "tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3), "fp8": (8, 9),
    "mxfp8": (10, 0), "mxfp6": (10, 0), "mxfp4": (10, 0), "nvfp4": (10, 0),
}  # fmt: skip
"""The least compute capability with matrix products in a format (NVIDIA, CUDA C++ programming guide)."""
CONVERTED: Final = ("fp8", "mxfp8")
"""Formats whose layers torchao converts; what is left alone computes in bf16."""


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
    if kind not in ("tf32", "bf16", "fp16", *CONVERTED):
        return Obstacle(f"native {kind} is not part of this version, whatever the device", _EMULATED)
    return None


@contextmanager
def as_trained(kind: str, live: Live) -> Iterator[None]:
    """Compute as in training while a model is scored: under autocast, and in 8 bits where layers are."""
    import torch

    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16} | dict.fromkeys(CONVERTED, torch.bfloat16)
    dtype = dtypes.get(kind)
    device, ran = "cuda" if torch.cuda.is_available() else "cpu", live.observed[_OBSERVED]
    ran.scored = True
    try:
        with torch.autocast(device, dtype, enabled=dtype is not None), tf32(kind == "tf32"):
            yield
    finally:
        ran.scored = False


@contextmanager
def watched(model: Any, live: Live) -> Iterator[torch.nn.Module]:
    """Count the matrix products of the first optimizer step by their dtypes, and note their kernels."""
    import torch

    from paribus.techniques.precision.traced import Ran, first_step

    ran = live.observed[_OBSERVED] = Ran()
    activity = torch.profiler.ProfilerActivity.CUDA if torch.cuda.is_available() else None
    with first_step(model, ran, live, activity):
        yield model


def after_step(live: Live) -> None:
    """Count no further: one step is proof."""
    live.observed[_OBSERVED].end()


@contextmanager
def tf32(wanted: bool = True) -> Iterator[None]:
    """Let matrix units read 19 bits of fp32 numbers, and put all three settings back.

    torch's older switch sets the newer ones (`fp32_precision`) too; set alone, these make reading it fail.
    """
    import torch

    if not wanted:
        yield
        return
    before = torch.get_float32_matmul_precision()
    newer: list[Any] = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
    kept = [place.fp32_precision for place in newer]
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for place, value in zip(newer, kept, strict=True):
            place.fp32_precision = value


def evidence(kind: str, dtype: str, live: Live) -> dict[str, Any]:
    """Return how many products ran in which dtype, in which kernels, and how much of the peak that was.

    What hardware falls back to silently shows here: the dtypes are those of the operands that the products
    were given, not those that were set. Raises NoEffect where most were not in the one asked for, and where a
    layer that was converted to 8 bits multiplied in more. FLOPs are counted in the first step.
    """
    ran: Ran = live.observed[_OBSERVED]
    asked = ran.eight_bit() if kind in CONVERTED else ran.dtypes[dtype]
    total = sum(ran.dtypes.values())
    if not total or (asked == 0 if kind in CONVERTED else 2 * asked < total):
        found = ", ".join(f"{count} in {name}" for name, count in ran.dtypes.most_common()) or "none"
        reason = f"of the matrix products of the first step {asked} ran in {dtype} ({found})"
        raise NoEffect(kind, reason, _EMULATED)
    fallen = [path for path, products in ran.low.items() if not products]
    if fallen:
        reason = f"{fallen[0]} was converted and multiplied in no 8-bit product ({len(fallen)} such)"
        raise NoEffect(kind, reason, _EMULATED)
    kernels = [name for name, _ in ran.kernels.most_common(_SHOWN)]
    return {
        "compute": "native",
        "matrix_products_of_first_step": dict(ran.dtypes.most_common()),
        "flops_of_first_step": ran.flops,
        **({"flops_computed_again": ran.flops_again} if ran.flops_again else {}),
        **({"modules_converted": len(ran.low)} if kind in CONVERTED else {}),
        **({"kernels_of_first_step": kernels} if kernels else {}),
        **_utilisation(kind, ran, live),
    }


def _utilisation(kind: str, ran: Ran, live: Live) -> dict[str, float]:
    """Return the MFU of all training: FLOPs a real token in the first step times tokens a second."""
    import torch

    if not (torch.cuda.is_available() and ran.tokens and live.tokens_per_second):
        return {}
    share = mfu(ran.flops / ran.tokens * live.tokens_per_second, 1.0, torch.cuda.get_device_name(), kind)
    return {} if share is None else {"mfu": float(f"{share:.3g}")}
