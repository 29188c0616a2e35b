"""The levels of precision that train through integers or a table of codes."""

from __future__ import annotations

from typing import ClassVar, Literal

from paribus.techniques.precision.level import Compute, Low
from paribus.techniques.precision.recipes import Cast, Recipe, by_role


class _Integer(Low):
    """Activations and weights in integers, gradients in bfloat16."""

    runs_natively: ClassVar = False
    hardware_shapes: ClassVar = True

    scaling: Literal["row", "tensor"] = "row"

    def base_recipe(self) -> Recipe:
        cast = Cast(self.word, self.scaling, along="forward")
        return by_role(cast, cast, Cast("bf16"))


class Int8(_Integer):
    """Train through 8-bit integers: weights and activations are rounded to -127 .. 127 times a scale.

    `scaling: row` has a scale for each token and each output, `tensor` one for each operand. The backward
    pass takes the same rounded weights and activations, and gradients in bfloat16: rounding itself counts as
    the identity (straight-through). `keep_high` names modules that keep fp32 (globs: `lm_head`, `layers.0`);
    `attention` rounds the products of attention too; `outputs` and `residual` round what layers and blocks
    give to bfloat16; `roles` gives a role another format or scaling. The head and layers with a dimension
    that is no multiple of 16 stay in fp32. Emulated only.
    """

    paper: ClassVar = "Jacob et al. 2018, arXiv:1712.05877; Dettmers et al. 2022, arXiv:2208.07339"

    kind: Literal["int8"] = "int8"
    compute: Compute = "native"


class Int4(_Integer):
    """Train through 4-bit integers: weights and activations are rounded to -7 .. 7 times a scale.

    What is rounded, and what `scaling`, `keep_high`, `outputs`, `attention`, `residual` and `roles` change,
    is as under `int8`; gradients are in bfloat16.
    """

    paper: ClassVar = "Jacob et al. 2018, arXiv:1712.05877"

    kind: Literal["int4"] = "int4"
    compute: Compute = "native"


class Nf4(Low):
    """Train through weights of 16 codes, quantiles of a normal distribution, in blocks of 64.

    Weights are rounded anew at every optimizer step, as no QLoRA does, whose base never moves: this is what
    full fine-tuning through such weights would be. The backward pass takes the same rounded weights;
    activations and gradients are in bfloat16. `keep_high`, `outputs`, `attention`, `residual` and `roles` are
    as under `int8`. The head and layers with a dimension that is no multiple of 16 stay in fp32. Emulated
    only.
    """

    paper: ClassVar = "Dettmers et al. 2023, arXiv:2305.14314"
    runs_natively: ClassVar = False
    hardware_shapes: ClassVar = True

    kind: Literal["nf4"] = "nf4"
    compute: Compute = "native"

    def base_recipe(self) -> Recipe:
        weights = Cast("nf4", "block", (1, 64), along="forward")
        return by_role(Cast("bf16"), weights, Cast("bf16"))
