"""Which number format each role of a matrix product uses: the levels of the precision axis."""

from __future__ import annotations

from typing import ClassVar, Literal

from paribus.techniques.base import Technique

Compute = Literal["native", "emulated"]


class Fp32(Technique):
    """Compute in 32-bit floats: nothing is rounded."""

    kind: Literal["fp32"] = "fp32"


class Bf16(Technique):
    """Compute matrix products in bfloat16 with fp32 accumulation and fp32 master weights."""

    paper: ClassVar = "Kalamkar et al. 2019, arXiv:1905.12322"

    kind: Literal["bf16"] = "bf16"
    compute: Compute = "native"


class Fp16(Technique):
    """Compute matrix products in IEEE half precision with a loss scale and fp32 master weights."""

    paper: ClassVar = "Micikevicius et al. 2017, arXiv:1710.03740"

    kind: Literal["fp16"] = "fp16"
    compute: Compute = "native"


class Fp8(Technique):
    """Compute matrix products in 8-bit floats.

    `recipe: standard` puts E4M3 on weights and activations and E5M2 on gradients; `scaling: tensor` divides
    each operand by its largest magnitude over the format's largest value before rounding, `none` does not.
    """

    paper: ClassVar = "Micikevicius et al. 2022, arXiv:2209.05433"

    kind: Literal["fp8"] = "fp8"
    recipe: Literal["standard"] = "standard"
    scaling: Literal["tensor", "none"] = "tensor"
    compute: Compute = "native"
