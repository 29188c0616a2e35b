"""Scaling before rounding, so that a tensor's numbers fall where its format has values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from paribus.techniques.precision.formats import BLOCKED, E4M3, Format, round_to

if TYPE_CHECKING:
    import torch

Word = Literal["none", "tensor", "row", "block", "mx", "nv", "delayed", "calibrated"]
Scaling = Word | float
"""How an operand is scaled before it is rounded.

`none`; `tensor`: by its largest magnitude when the product is made; `row`: each vector of the product's sum
by its own; `block`: tiles, 1 x 128 or 128 x 128 (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2); `mx`:
blocks of 32 by a power of two (OCP Microscaling Formats v1.0, 6.3); `nv`: blocks of 16 by a number in E4M3
and the tensor by one in FP32 (NVIDIA 2025, arXiv:2509.25149, section 2); `delayed`: by the largest magnitude
of the calls before (Transformer Engine); `calibrated`: by a number fixed after the first calls; a number: by
that factor.
"""

LOSS_SCALE: Final = 4096.0
"""The static loss scale of emulated fp16: gradients down to 1.5e-11 survive, larger ones than 16 overflow.

Within the 8 to 32768 of Micikevicius et al. 2017, arXiv:1710.03740, section 3.2.
"""
REMEMBERED: Final = 16
"""How many calls `delayed` looks back on. Transformer Engine has 1024, longer than short runs are."""
CALIBRATION: Final = 16
QUANTILE: Final = 0.99
"""`calibrated` takes this quantile of the scales of so many calls, as the article does over 100 steps."""


class Rounded(NamedTuple):
    """Numbers that a format holds exactly, and what gives them back their size (None: 1).

    `outside` says that the scale varies along the axis a product sums over, so that it cannot be applied to
    the sums: such a product is one of `restored()` operands.
    """

    values: torch.Tensor
    scale: torch.Tensor | float | None
    outside: bool = False

    def restored(self) -> torch.Tensor:
        """Return the numbers at their own size."""
        return self.values if self.scale is None else self.values * self.scale


@dataclass
class History:
    """The largest magnitudes of the calls so far, the last ones; `calls` counts all of them."""

    largest: list[torch.Tensor] = field(default_factory=list)
    calls: int = 0

    def see(self, largest: torch.Tensor, keep: int) -> None:
        """Add one call and forget those before the last `keep`."""
        self.calls += 1
        self.largest = [*self.largest[1 - keep :], largest] if keep > 1 else [largest]


def scaled_round(
    values: torch.Tensor,
    form: Format,
    scaling: Scaling,
    *,
    axis: int = -1,
    block: tuple[int, int] = (1, 128),
    history: History | None = None,
    learning: bool = True,
) -> Rounded:
    """Scale and round a matrix; the products of rounded operands are scaled back after they are summed.

    `axis` is the one the product sums over; a tile of `block` has its second number of elements along it.
    `delayed` and `calibrated` read their `history` and, while `learning`, add to it.
    """
    if scaling == "none":
        return Rounded(round_to(values, form), None)
    if not isinstance(scaling, str):
        return Rounded(round_to(values * scaling, form), 1 / scaling)
    if scaling == "tensor":
        return _divided(values, form, _scale(values.abs().amax(), form))
    if scaling == "row":
        return _divided(values, form, _scale(values.abs().amax(axis, keepdim=True), form))
    if scaling in _REMEMBERING:
        largest = values.abs().amax()
        return _divided(
            values, form, _scale(_REMEMBERING[scaling](history or History(), largest, learning), form)
        )
    size, of_block = {
        "block": (block, lambda most: _scale(most, form)),
        "mx": ((1, BLOCKED["mxfp8"].block), lambda most: _power_of_two(most, form)),
        "nv": ((1, BLOCKED["nvfp4"].block), lambda most: _two_levels(most, form)),
    }[scaling]
    return _divided(values, form, _by_tile(values, size, axis, of_block), outside=True)


def _divided(values: torch.Tensor, form: Format, scale: torch.Tensor, *, outside: bool = False) -> Rounded:
    return Rounded(round_to(values / scale, form), scale, outside)


def _scale(largest: torch.Tensor, form: Format) -> torch.Tensor:
    """Return what takes the largest magnitude to the format's largest value."""
    import torch

    return (largest / form.largest).clamp(min=torch.finfo(torch.float32).tiny)


def _delayed(history: History, largest: torch.Tensor, learning: bool) -> torch.Tensor:
    """Return the largest magnitude of the calls before this one; of this one where it is the first."""
    import torch

    found = torch.stack(history.largest).amax() if history.largest else largest
    if learning:
        history.see(largest, REMEMBERED)
    return found


def _calibrated(history: History, largest: torch.Tensor, learning: bool) -> torch.Tensor:
    """Return this call's largest magnitude until enough were seen, then a quantile of those for good."""
    import torch

    if history.calls >= CALIBRATION:
        return torch.quantile(torch.stack(history.largest), QUANTILE)
    if learning:
        history.see(largest, CALIBRATION)
    return largest


_REMEMBERING: Final = {"delayed": _delayed, "calibrated": _calibrated}


def _power_of_two(largest: torch.Tensor, form: Format) -> torch.Tensor:
    """Return 2^(floor(log2 of a block's largest) - the format's largest exponent), within E8M0."""
    import torch

    exponent = torch.frexp(largest).exponent - 1 - math.floor(math.log2(form.largest))
    power = torch.ldexp(torch.ones_like(largest), exponent.clamp(-127, 127))
    return torch.where(largest > 0, power, torch.ones_like(power)).where(largest.isfinite(), largest)


def _two_levels(largest: torch.Tensor, form: Format) -> torch.Tensor:
    """Return the scales of blocks in E4M3, at least its least number, times that of the tensor."""
    tensor = _scale(largest.amax(), form) / E4M3.largest
    return round_to(_scale(largest, form) / tensor, E4M3).clamp(min=E4M3.smallest_subnormal) * tensor


def _by_tile(
    values: torch.Tensor, size: tuple[int, int], axis: int, of: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return every element's scale, by the largest magnitude of its tile; tiles at the edges are short."""
    import torch

    matrix = values if axis % 2 else values.t()
    (rows, columns), (high, wide) = matrix.shape, size
    padded = torch.nn.functional.pad(matrix.abs(), (0, -columns % wide, 0, -rows % high))
    tiles = padded.view(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
    scales = of(tiles.amax((1, 3), keepdim=True)).expand_as(tiles).reshape(padded.shape)[:rows, :columns]
    return scales if axis % 2 else scales.t()
