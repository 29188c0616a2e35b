"""What a number format can hold, and rounding to it on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import torch

Role = Literal["activations", "weights", "gradients"]
"""The part a tensor plays in the products of a linear layer."""


@dataclass(frozen=True)
class Format:
    """A number format by its bits and what they reach.

    `significand_bits` counts the hidden bit (of an integer: all but the sign); a format without exponent bits
    is a table of codes. `saturates` says what becomes of larger values: the largest one, or infinity. `dtype`
    is torch's name for it, None where torch has none that it converts to.
    """

    name: str
    bits: int
    exponent_bits: int
    significand_bits: int
    largest: float
    smallest_normal: float
    smallest_subnormal: float
    saturates: bool = False
    dtype: str | None = None

    @property
    def relative_step(self) -> float | None:
        """Return the gap between 1 and the next value, None for a table of codes or integers."""
        return 2.0 ** (1 - self.significand_bits) if self.exponent_bits else None


def _ieee(
    name: str, exponent: int, significand: int, dtype: str | None, *, saturates: bool = False
) -> Format:
    """Return a format whose largest exponent is kept for infinities and NaN (IEEE 754-2019, 3.4)."""
    bias = 2 ** (exponent - 1) - 1
    return _floats(name, exponent, significand, (2 - 2.0 ** (1 - significand)) * 2.0**bias, dtype, saturates)


def _floats(
    name: str, exponent: int, significand: int, largest: float, dtype: str | None, saturates: bool = True
) -> Format:
    normal = 2.0 ** (2 - 2 ** (exponent - 1))
    least = normal * 2.0 ** (1 - significand)
    return Format(
        name, exponent + significand, exponent, significand, largest, normal, least, saturates, dtype
    )


FP32: Final = _ieee("fp32", 8, 24, "float32")
TF32: Final = _ieee("tf32", 8, 11, None)
"""What a matrix unit reads of an FP32 number: 19 bits in a word of 32 (NVIDIA A100 white paper, 2020)."""
FP16: Final = _ieee("fp16", 5, 11, "float16")
BF16: Final = _ieee("bf16", 8, 8, "bfloat16")
E4M3: Final = _floats("e4m3", 4, 4, 448.0, "float8_e4m3fn")
E5M2: Final = _ieee("e5m2", 5, 3, "float8_e5m2", saturates=True)
"""8-bit formats as in Micikevicius et al. 2022, arXiv:2209.05433, table 1."""
E3M2: Final = _floats("e3m2", 3, 3, 28.0, None)
E2M3: Final = _floats("e2m3", 2, 4, 7.5, None)
E2M1: Final = _floats("e2m1", 2, 2, 6.0, None)
"""6- and 4-bit formats without infinity or NaN: OCP Microscaling Formats v1.0, 5.3.2 and 5.3.3."""
INT8: Final = Format("int8", 8, 0, 7, 127.0, 1.0, 1.0, saturates=True)
INT4: Final = Format("int4", 4, 0, 3, 7.0, 1.0, 1.0, saturates=True)
"""Integers of equal range on both sides: the least code is not used."""
NF4_CODES: Final = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
    1.0,
)  # fmt: skip
"""Quantiles of a normal distribution: Dettmers et al. 2023, arXiv:2305.14314, appendix E."""
NF4: Final = Format("nf4", 4, 0, 0, 1.0, NF4_CODES[8], NF4_CODES[8], saturates=True)

FORMATS: Final = {
    form.name: form for form in (FP32, TF32, FP16, BF16, E4M3, E5M2, E3M2, E2M3, E2M1, INT8, INT4, NF4)
}


@dataclass(frozen=True)
class Blocked:
    """A format in which every `block` elements along a product's sum share a scale of their own."""

    name: str
    element: Format
    block: int
    scale: Literal["e8m0", "e4m3"]

    @property
    def bits_per_value(self) -> float:
        """Return the bits of an element and its share of its scale's eight."""
        return self.element.bits + 8 / self.block


MXFP8: Final = Blocked("mxfp8", E4M3, 32, "e8m0")
MXFP6: Final = Blocked("mxfp6", E3M2, 32, "e8m0")
MXFP4: Final = Blocked("mxfp4", E2M1, 32, "e8m0")
"""OCP Microscaling Formats v1.0, table 1, with the elements of Rouhani et al. 2023, arXiv:2310.10537."""
NVFP4: Final = Blocked("nvfp4", E2M1, 16, "e4m3")
"""Blocks of 16 with a scale in E4M3, and one for the tensor: NVIDIA 2025, arXiv:2509.25149, section 2."""
BLOCKED: Final = {form.name: form for form in (MXFP8, MXFP6, MXFP4, NVFP4)}


def round_to(values: torch.Tensor, form: Format) -> torch.Tensor:
    """Round to the nearest value of a format, ties to even, and return it in the dtype of `values`.

    Infinities saturate where the format does; a NaN stays one. A tie between two codes of NF4 goes down, as
    in bitsandbytes.
    """
    import torch

    if form.name == "nf4":
        return _nearest_code(values)
    if not form.exponent_bits:
        return values.round().clamp(-form.largest, form.largest)
    if form.saturates:
        return _grid(values.clamp(-form.largest, form.largest), form)
    if values.dtype == torch.float64:  # torch's own cast goes through fp32 and so rounds twice
        near = values.clamp(-2 * form.largest, 2 * form.largest)
        return _with_infinities(_grid(near, form), values, form)
    if form.name == "tf32":
        return _cut(values)
    return values.to(getattr(torch, form.dtype or "float32")).to(values.dtype)


def stochastic_round(values: torch.Tensor, form: Format, draws: torch.Tensor) -> torch.Tensor:
    """Round up or down with the odds of how near each neighbour is, so that the mean is the value itself.

    `draws` are uniform in [0, 1), one a value (Gupta et al. 2015, arXiv:1502.02551, section 3.2). Values
    beyond the largest are as in `round_to`. Raises ValueError for NF4, whose steps have many sizes.
    """
    if form.name == "nf4":
        raise ValueError("values of nf4 are rounded to the nearest code alone")
    wide = values.to(_wide(values))
    if form.saturates:
        wide = wide.clamp(-form.largest, form.largest)
    step = _power_below(wide, form) * 2.0 ** (1 - form.significand_bits) if form.exponent_bits else 1.0
    steps = wide / step
    low = steps.floor()
    rounded = (low + (draws.to(wide.dtype) < steps - low)) * step
    if not form.saturates:
        rounded = _with_infinities(rounded, wide, form)
    return rounded.to(values.dtype)


def _wide(values: torch.Tensor) -> torch.dtype:
    import torch

    return torch.promote_types(values.dtype, torch.float32)


def _power_below(values: torch.Tensor, form: Format) -> torch.Tensor:
    """Return the power of two at or below each magnitude, at least that of the least normal number."""
    import torch

    if values.dtype == torch.float64:
        power = values.view(torch.int64).bitwise_and(0x7FF << 52).view(torch.float64)
    else:
        power = values.view(torch.int32).bitwise_and(0xFF << 23).view(torch.float32)
    return power.clamp_(min=form.smallest_normal)


def _grid(values: torch.Tensor, form: Format) -> torch.Tensor:
    """Round to the step at each magnitude: what is added and taken away pushes the finer bits out."""
    import torch

    wide = values.to(_wide(values))
    digits = 53 if wide.dtype == torch.float64 else 24
    push = _power_below(wide, form).mul_(1.5 * 2.0 ** (digits - form.significand_bits))
    return torch.copysign((wide + push) - push, wide).to(values.dtype)


def _with_infinities(rounded: torch.Tensor, values: torch.Tensor, form: Format) -> torch.Tensor:
    """Make infinite what is beyond the largest value after rounding."""
    beyond = rounded.abs().gt(form.largest).logical_or_(values.isinf())
    return rounded.where(~beyond, values * math.inf)


def _cut(values: torch.Tensor) -> torch.Tensor:
    """Round to the upper 19 bits of an FP32 number."""
    import torch

    bits = values.to(torch.float32).contiguous().view(torch.int32)
    odd = bits.bitwise_right_shift(13).bitwise_and_(1)
    rounded = (bits + odd.add_(0x0FFF)).bitwise_and_(~0x1FFF).view(torch.float32)
    return torch.where(values.isnan(), values, rounded.to(values.dtype))


_CELLS: Final = 32
"""Cells a unit, so narrow that none has two limits between codes of NF4 in it."""


def _nearest_code(values: torch.Tensor) -> torch.Tensor:
    """Look up the code below each value's cell, and go up one where the value is above the cell's limit."""
    import torch

    wide = values.to(_wide(values))
    codes = torch.tensor(NF4_CODES, dtype=wide.dtype, device=wide.device)
    limits = (codes[1:] + codes[:-1]) / 2
    of_limits, cells = _cell(limits), torch.arange(2 * _CELLS + 1, device=wide.device)
    below = (of_limits < cells.unsqueeze(1)).sum(1)
    limit = torch.full_like(cells, math.inf, dtype=wide.dtype).scatter_(0, of_limits, limits)
    cell = _cell(wide.nan_to_num())
    found = codes.take(below.take(cell) + (wide > limit.take(cell)))
    return torch.where(values.isnan(), values, found.to(values.dtype))


def _cell(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-1, 1).add(1).mul_(_CELLS).long()
