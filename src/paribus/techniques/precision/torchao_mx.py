"""8-bit products in blocks of 32 by torchao, on devices whose matrix units have them (MXFP8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch

from paribus.techniques.base import NoEffect
from paribus.techniques.precision.torchao_fp8 import forward, suitable
from paribus.techniques.precision.traced import Ran

BLOCK: Final = 32
ROWS: Final = 128
"""Tokens are filled up with zeros to a multiple of this, in which scales are laid out for matrix units."""


@contextmanager
def converted(
    model: Any, high: Callable[[str], bool], ran: Callable[[], Ran], *, emulate: bool = False
) -> Iterator[list[str]]:
    """Have linear layers multiply by torchao's MXFP8 products; the modules and their parameters stay.

    The head, layers with a dimension that is no multiple of 32 and those that `high` names are left alone.
    Yields the names of converted layers. Raises NoEffect where none is left, and where torchao has no such
    products (they are in 0.18). `emulate` is torchao's own, for devices without the units.
    """
    try:
        from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm as product  # type: ignore[import-not-found]
        from torchao.prototype.mx_formats.config import ScaleCalculationMode  # type: ignore[import-not-found]
        from torchao.quantization.quantize_.common.kernel_preference import KernelPreference  # type: ignore[import-not-found]
    except ImportError as error:
        reason = f"this version of torchao has no MXFP8 products ({error})"
        raise NoEffect("mxfp8", reason, "pip install torchao==0.18.0, or set compute: emulated") from error

    preference = KernelPreference.EMULATED if emulate else KernelPreference.AUTO
    multiply = partial(
        product, kernel_preference=preference, scale_calculation_mode=ScaleCalculationMode.RCEIL
    )
    taken = sorted(suitable(model, BLOCK, high))
    if not taken:
        raise NoEffect(
            "mxfp8", "no linear layer has dimensions that are multiples of 32", "set precision: bf16"
        )
    before = {path: vars(model.get_submodule(path)).get("forward") for path in taken}
    try:
        for path in taken:
            module = model.get_submodule(path)
            vars(module)["forward"] = partial(
                forward, path, module, partial(_multiplied, module, multiply), ran
            )
        yield taken
    finally:
        for path, own in before.items():
            module = model.get_submodule(path)
            del vars(module)["forward"]
            if own is not None:
                vars(module)["forward"] = own


def _multiplied(module: Any, multiply: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Multiply in bf16 words; rows of zeros that fill the tokens up add nothing to any sum."""
    flat = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
    filled = torch.nn.functional.pad(flat, (0, 0, 0, -flat.shape[0] % ROWS))
    output = multiply(filled, module.weight.to(torch.bfloat16))[: flat.shape[0]]
    if module.bias is not None:
        output = output + module.bias.to(output.dtype)
    return output.view(*x.shape[:-1], -1)
