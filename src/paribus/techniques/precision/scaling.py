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
of the steps before (Transformer Engine); `calibrated`: by a number fixed after the first steps; a number: by
that factor.
"""

LOSS_SCALE: Final = 4096.0
"""The static loss scale of emulated fp16: gradients down to 1.5e-11 survive, larger ones than 16 overflow.

Within the 8 to 32768 of Micikevicius et al. 2017, arXiv:1710.03740, section 3.2.
"""
REMEMBERED: Final = 16
"""How many steps `delayed` looks back on. Transformer Engine has 1024, longer than short runs are."""
QUANTILE: Final = 0.99
"""`calibrated` takes this quantile of the largest magnitudes of its first steps.

The article takes it of the factors, over 100 steps: that would be of the smallest magnitude, and overflow.
"""


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

    def t(self) -> Rounded:
        """Return the transposed matrix."""
        scale = self.scale if self.scale is None or isinstance(self.scale, float | int) else self.scale.t()
        return Rounded(self.values.t(), scale, self.outside)


@dataclass
class History:
    """The largest magnitude of each optimizer step that one operand was seen in, at most the last `keep`.

    What a step sees counts from the next one on, so all of its micro-batches share one scale. The step that
    goes on is `step`, and `now` its largest magnitude so far. Once `calibrated` has found what is `fixed`, no
    more is added: the steps it was found from stay.
    """

    keep: int = REMEMBERED
    largest: list[torch.Tensor] = field(default_factory=list)
    step: int = -1
    now: torch.Tensor | None = None
    fixed: torch.Tensor | None = None

    def see(self, largest: torch.Tensor, step: int) -> None:
        """Add what one micro-batch of a step has."""
        import torch

        self.turn(step)
        if self.fixed is not None:
            return
        self.now = largest if self.now is None else torch.maximum(self.now, largest)

    def turn(self, step: int) -> None:
        """Begin a step: the one before is over."""
        if step != self.step:
            if self.now is not None:
                self.largest = [*self.largest, self.now][-self.keep :]
            self.step, self.now = step, None


def scaled_round(
    values: torch.Tensor,
    form: Format,
    scaling: Scaling,
    *,
    axis: int = -1,
    block: tuple[int, int] = (1, 128),
    power_of_two: bool = False,
    history: History | None = None,
) -> Rounded:
    """Scale and round a matrix; the products of rounded operands are scaled back after they are summed.

    `axis` is the one the product sums over; a tile of `block` has its second number of elements along it.
    `power_of_two` rounds the scale of a tensor or row up to one. `delayed` and `calibrated` read `history`;
    without any they are as `tensor`.
    """
    if scaling == "none":
        return Rounded(round_to(values, form), None)
    if not isinstance(scaling, str):
        return Rounded(round_to(values * scaling, form), 1 / scaling)
    if scaling in ("block", "mx", "nv"):
        return _divided(values, form, _by_tile(values, axis, *_tiles(scaling, form, block)), outside=True)
    over = () if scaling != "row" else axis
    largest = values.abs().amax(over, keepdim=scaling == "row")
    if scaling in _REMEMBERING and history is not None and history.largest:
        largest = _REMEMBERING[scaling](history, largest)
    scale = _scale(largest, form)
    return _divided(values, form, _upper_power(scale) if power_of_two else scale)


def _divided(values: torch.Tensor, form: Format, scale: torch.Tensor, *, outside: bool = False) -> Rounded:
    return Rounded(round_to(values / scale, form), scale, outside)


def _scale(largest: torch.Tensor, form: Format) -> torch.Tensor:
    """Return what takes the largest magnitude to the format's largest value, and nothing to nothing.

    An infinity or NaN makes NaN of all that shares its scale.
    """
    import torch

    return (largest / form.largest).clamp(min=torch.finfo(torch.float32).tiny)


def _upper_power(scale: torch.Tensor) -> torch.Tensor:
    """Return the power of two at or above a scale."""
    import torch

    fraction, exponent = torch.frexp(scale)
    power = torch.ldexp(torch.ones_like(scale), exponent - (fraction == 0.5).int())
    return torch.where(scale.isfinite(), power, scale)


def _delayed(history: History, largest: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of the steps before this one; steps with none, or no finite one, are none.

    Without any this is the tensor's own, where Transformer Engine keeps the scale it had.
    """
    import torch

    seen = torch.stack(history.largest)
    most = seen.where(seen.isfinite(), 0).amax()
    return torch.where(most > 0, most, largest)


def _calibrated(history: History, largest: torch.Tensor) -> torch.Tensor:
    """Return this tensor's largest magnitude until enough steps were seen, then a quantile of theirs."""
    import torch

    if len(history.largest) < history.keep:
        return largest
    if history.fixed is None:
        seen = torch.stack(history.largest)
        history.fixed = torch.nanquantile(seen.where(seen.isfinite() & (seen > 0), math.nan), QUANTILE)
    return torch.where(history.fixed.isnan(), largest, history.fixed)


_REMEMBERING: Final = {"delayed": _delayed, "calibrated": _calibrated}


def _tiles(
    scaling: str, form: Format, block: tuple[int, int]
) -> tuple[tuple[int, int], Callable[[torch.Tensor], torch.Tensor]]:
    """Return the size of a scaling's tiles and what gives a tile its scale."""
    if scaling == "mx":
        return (1, BLOCKED["mxfp8"].block), lambda most: _power_of_two(most, form)
    if scaling == "nv":
        return (1, BLOCKED["nvfp4"].block), lambda most: _two_levels(most, form)
    return block, lambda most: _scale(most, form)


def _power_of_two(largest: torch.Tensor, form: Format) -> torch.Tensor:
    """Return 2^(floor(log2 of a block's largest) - the format's largest exponent), within E8M0."""
    import torch

    exponent = torch.frexp(largest).exponent - 1 - math.floor(math.log2(form.largest))
    power = torch.ldexp(torch.ones_like(largest), exponent.clamp(-127, 127))
    return torch.where(largest > 0, power, torch.ones_like(power)).where(largest.isfinite(), largest)


def _two_levels(largest: torch.Tensor, form: Format) -> torch.Tensor:
    """Return the scales of blocks in E4M3, at least its least number, times that of the tensor."""
    tensor = _scale(largest.amax() / E4M3.largest, form)
    return round_to(_scale(largest, form) / tensor, E4M3).clamp(min=E4M3.smallest_subnormal) * tensor


def _by_tile(
    values: torch.Tensor, axis: int, size: tuple[int, int], of: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return every element's scale, by the largest magnitude of its tile; tiles at the edges are short."""
    import torch

    matrix = values if axis % 2 else values.t()
    (rows, columns), (high, wide) = matrix.shape, size
    padded = torch.nn.functional.pad(matrix.abs(), (0, -columns % wide, 0, -rows % high))
    tiles = padded.view(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
    scales = of(tiles.amax((1, 3), keepdim=True)).expand_as(tiles).reshape(padded.shape)[:rows, :columns]
    return scales if axis % 2 else scales.t()
