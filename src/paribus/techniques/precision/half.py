"""The levels of precision that multiply 16-bit floats."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from paribus.techniques.precision.level import Compute, Low
from paribus.techniques.precision.recipes import Cast, Recipe, by_role, everywhere
from paribus.techniques.precision.scaling import LOSS_SCALE


class Bf16(Low):
    """Compute matrix products in bfloat16 with fp32 accumulation and fp32 master weights.

    Emulated, `outputs`, `attention` and `residual` say whether what layers give, the products of attention
    and what blocks give are rounded too, `keep_high` names modules that keep fp32 (globs: `lm_head`,
    `layers.0`), and `roles` gives a role another format or scaling.
    """

    paper: ClassVar = "Kalamkar et al. 2019, arXiv:1905.12322"
    native_dtype: ClassVar = "bfloat16"

    kind: Literal["bf16"] = "bf16"
    compute: Compute = "native"

    def trainer_arguments(self) -> dict[str, Any]:
        return {"bf16": True} if self.compute == "native" else {}

    def base_recipe(self) -> Recipe:
        return everywhere(Cast("bf16"))


class Fp16(Low):
    """Compute matrix products in IEEE half precision with a loss scale and fp32 master weights.

    Native, the scale is dynamic and a step that overflows is left out; emulated, it is static and applied
    where gradients are rounded, and a gradient that overflows ends the trial as diverged. Emulated,
    `outputs`, `attention` and `residual` say whether what layers give, the products of attention and what
    blocks give are rounded too, `keep_high` names modules that keep fp32 (globs: `lm_head`, `layers.0`), and
    `roles` gives a role another format or scaling.
    """

    paper: ClassVar = "Micikevicius et al. 2017, arXiv:1710.03740"
    native_dtype: ClassVar = "float16"
    output_format: ClassVar = "fp16"

    kind: Literal["fp16"] = "fp16"
    compute: Compute = "native"

    def trainer_arguments(self) -> dict[str, Any]:
        return {"fp16": True} if self.compute == "native" else {}

    def base_recipe(self) -> Recipe:
        return by_role(Cast("fp16"), Cast("fp16"), Cast("fp16", LOSS_SCALE))
