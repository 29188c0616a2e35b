"""Scaling before rounding, so that a tensor's numbers fall where its format has values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from paribus.techniques.precision.formats import Format, round_to

if TYPE_CHECKING:
    import torch

Scaling = Literal["none", "tensor"] | float
"""`none`; `tensor`: by a tensor's largest magnitude when the product is made; a number: by that factor."""

LOSS_SCALE: Final = 4096.0
"""The static loss scale of emulated fp16: gradients down to 1.5e-11 survive, larger ones than 16 overflow.

Within the 8 to 32768 of Micikevicius et al. 2017, arXiv:1710.03740, section 3.2.
"""


class Rounded(NamedTuple):
    """Numbers that a format holds exactly, and the factor that gives them back their size (None: 1)."""

    values: torch.Tensor
    scale: torch.Tensor | float | None

    def restored(self) -> torch.Tensor:
        """Return the numbers at their own size."""
        return self.values if self.scale is None else self.values * self.scale


def scaled_round(values: torch.Tensor, form: Format, scaling: Scaling) -> Rounded:
    """Scale and round a tensor; the products of rounded tensors are scaled back after they are summed."""
    import torch

    if scaling == "none":
        return Rounded(round_to(values, form), None)
    if scaling == "tensor":
        smallest = torch.finfo(torch.float32).tiny
        scale = (values.abs().amax() / form.largest).clamp(min=smallest)
        return Rounded(round_to(values / scale, form), scale)
    return Rounded(round_to(values * scaling, form), 1 / scaling)
