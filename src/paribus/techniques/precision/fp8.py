"""The level of precision that multiplies 8-bit floats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from paribus.machine import Machine
from paribus.techniques.base import Live, Obstacle, Setting
from paribus.techniques.precision import torchao_fp8
from paribus.techniques.precision.level import KEY, Compute, Low
from paribus.techniques.precision.recipes import FP8_FIXED, Recipe, fp8


class Fp8(Low):
    """Compute matrix products in 8-bit floats.

    - `recipe: standard` puts E4M3 on weights and activations and E5M2 on gradients; `article` puts E5M2 on
      weights and E4M3 on the rest; `all_e4m3` has E4M3 alone. `tensorwise`, `rowwise` and
      `rowwise_with_gw_hp` are those of torchao: the standard one by tensor; E4M3 by row with scales that are
      powers of two; the same with weight gradients in fp32 and weights by tensor in input gradients.
      `deepseek` has E4M3 in tiles of 1 x 128, weights in blocks of 128 x 128. These four fix their scaling.
    - `scaling: tensor` divides each operand by its largest magnitude over the format's largest value before
      rounding, `none` does not; `row` does so for each vector that a product sums over, `block` for tiles as
      `deepseek` has them; `delayed` by the largest magnitude of the 16 optimizer steps before, `calibrated`
      by the 99th percentile of the largest magnitudes of the first 16, fixed from then on.
    - `keep_high` names modules that keep fp32 (globs: `lm_head`, `layers.0`); `attention` rounds the products
      of attention too, as activations and gradients are; `outputs` and `residual` round what layers and
      blocks give to bfloat16; `roles` gives a role another format or scaling.

    The head and layers with a dimension that is no multiple of 16 (small LoRA matrices) stay in fp32.
    """

    paper: ClassVar = "Micikevicius et al. 2022, arXiv:2209.05433"
    hardware_shapes: ClassVar = True
    native_dtype: ClassVar = "float8_e4m3fn"

    kind: Literal["fp8"] = "fp8"
    recipe: Literal[
        "standard", "article", "all_e4m3", "tensorwise", "rowwise", "rowwise_with_gw_hp", "deepseek"
    ] = "standard"
    scaling: Literal["tensor", "none", "row", "block", "delayed", "calibrated"] = "tensor"
    compute: Compute = "native"

    @model_validator(mode="after")
    def _agree(self) -> Fp8:
        """Take the scaling that a recipe fixes; refuse another one."""
        if self.recipe not in FP8_FIXED:
            return self
        fixed = FP8_FIXED[self.recipe][0]
        if "scaling" in self.model_fields_set and self.scaling != fixed:
            raise ValueError(
                f"recipe {self.recipe} scales by {fixed}, not by {self.scaling}: leave out scaling, or "
                "choose recipe: standard, article or all_e4m3"
            )
        vars(self)["scaling"] = fixed
        return self

    @property
    def label(self) -> str:
        """Name this level; the scaling that its recipe fixes goes without saying."""
        if self.recipe not in FP8_FIXED:
            return super().label
        plain = self.model_copy(update={"recipe": "standard", "scaling": "tensor"})
        return plain.label.replace("fp8", f"fp8 {self.recipe}", 1)

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        """Say why the hardware or torchao cannot do this; emulation runs anywhere."""
        found = super().obstacle(machine, setting)
        if found is not None or self.compute == "emulated":
            return found
        return torchao_fp8.obstacle(self.recipe, self.scaling)

    @contextmanager
    def natively(self, model: Any, live: Live) -> Iterator[None]:
        """Convert linear layers by torchao, for the length of training."""
        from paribus.techniques.precision.emulate import kept_high

        high = kept_high(self.word, model, self.keep_high)
        with torchao_fp8.converted(model, self.recipe, high, lambda: live.observed[KEY]):
            yield

    def trainer_arguments(self) -> dict[str, Any]:
        return {"bf16": True} if self.compute == "native" else {}

    def base_recipe(self) -> Recipe:
        return fp8(self.recipe, self.scaling)
