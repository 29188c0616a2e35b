"""The levels of precision that compute in 32-bit words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from paribus.techniques.base import Live, Technique
from paribus.techniques.precision import native
from paribus.techniques.precision.level import Low
from paribus.techniques.precision.recipes import Cast, Recipe, everywhere

if TYPE_CHECKING:
    import torch


class Fp32(Technique):
    """Compute in 32-bit floats: nothing is rounded."""

    kind: Literal["fp32"] = "fp32"

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the dtypes of the parameters, which are also those of their products."""
        return {"parameter_dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()})}


class Tf32(Low):
    """Compute matrix products on fp32 words of which 19 bits are read: fp32's range, fp16's significand.

    Emulated, each operand of the three products is rounded to those bits and sums stay in fp32. `keep_high`
    names modules that keep fp32 (globs: `lm_head`, `layers.0`); `attention` rounds the products of queries
    and keys and of weights and values too; `outputs` and `residual` round what layers and blocks give to the
    same bits, which hardware does not: it writes fp32. `roles` gives a role another format or scaling.
    """

    paper: ClassVar = "NVIDIA 2020, A100 Tensor Core GPU Architecture"
    native_dtype: ClassVar = "tf32"
    output_format: ClassVar = "tf32"

    kind: Literal["tf32"] = "tf32"

    @contextmanager
    def natively(self, model: Any, live: Live) -> Iterator[None]:
        """Switch on what torch leaves off, for the length of training."""
        with native.tf32():
            yield

    def base_recipe(self) -> Recipe:
        return everywhere(Cast("tf32"))
