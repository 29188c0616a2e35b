"""The levels of precision that multiply 16-bit floats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from paribus.machine import Machine
from paribus.techniques.base import Live, Obstacle, Setting, added_later
from paribus.techniques.precision.level import KEY, Compute, Low
from paribus.techniques.precision.loss_scale import FIRST, INTERVAL, LossScale
from paribus.techniques.precision.recipes import Cast, Recipe, by_role, everywhere
from paribus.techniques.precision.scaling import LOSS_SCALE

if TYPE_CHECKING:
    import torch


_OBSERVED: Final = "loss_scale"


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

    Native, the scale is dynamic and a step that overflows is left out. Emulated, a scale is applied where
    gradients are rounded, which is what scaling the loss does, and taken off their sums:

    - `loss_scale`: a number holds throughout, and a gradient that overflows ends the trial as diverged;
      `dynamic` starts at 65536, is halved after a step that overflows, which is left out, and doubled after
      `growth_interval` steps in a row without one, all as `torch.amp.GradScaler` does; `none` flushes
      gradients below 3e-8 to zero.

    Emulated, `outputs`, `attention` and `residual` say whether what layers give, the products of attention
    and what blocks give are rounded too, `keep_high` names modules that keep fp32 (globs: `lm_head`,
    `layers.0`), and `roles` gives a role another format or scaling.
    """

    paper: ClassVar = "Micikevicius et al. 2017, arXiv:1710.03740"
    native_dtype: ClassVar = "float16"
    output_format: ClassVar = "fp16"

    kind: Literal["fp16"] = "fp16"
    compute: Compute = "native"
    loss_scale: Literal["dynamic", "none"] | Annotated[float, Field(gt=0)] = added_later(
        LOSS_SCALE, as_if_absent=LOSS_SCALE
    )
    growth_interval: int = added_later(INTERVAL, as_if_absent=INTERVAL, ge=1)

    @model_validator(mode="after")
    def _one_scale(self) -> Fp16:
        gradients = self.roles.gradients
        if self.loss_scale != LOSS_SCALE and gradients and gradients.scaling is not None:
            raise ValueError("roles.gradients.scaling and loss_scale both scale gradients; take one out")
        return self

    @property
    def label(self) -> str:
        """Name this level in a table; a scale that is a word is named as one."""
        words = {"dynamic": "dynamic scale", "none": "unscaled"}
        if not isinstance(self.loss_scale, str):
            return super().label
        return f"{self.model_copy(update={'loss_scale': LOSS_SCALE}).label} {words[self.loss_scale]}"

    def canonical(self) -> dict[str, Any]:
        """A scale that does not grow has no interval."""
        whole = super().canonical()
        return whole if self.loss_scale == "dynamic" else _without(whole, "growth_interval")

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        """Say why the hardware cannot do this, or that its scale is not ours to choose."""
        found = super().obstacle(machine, setting)
        if found is None and self.compute == "native" and {"loss_scale", "growth_interval"} & self._changed():
            reason = "natively the scale is that of torch.amp.GradScaler, dynamic from 65536"
            return Obstacle(reason, "take loss_scale and growth_interval out, or set compute: emulated")
        return found

    def trainer_arguments(self) -> dict[str, Any]:
        return {"fp16": True} if self.compute == "native" else {}

    def base_recipe(self) -> Recipe:
        return by_role(Cast("fp16"), Cast("fp16"), Cast("fp16", self._first()))

    def _first(self) -> float:
        if isinstance(self.loss_scale, float):
            return self.loss_scale
        return FIRST if self.loss_scale == "dynamic" else 1.0

    @contextmanager
    def emulated(
        self, model: Any, live: Live, active: Callable[[], bool] | None = None
    ) -> Iterator[torch.nn.Module]:
        """Emulate with a loss scale, unless `roles` scales gradients in another way."""
        with super().emulated(model, live, active) as changed:
            interval = self.growth_interval if self.loss_scale == "dynamic" else None
            scale = live.observed[_OBSERVED] = LossScale(self._first(), interval)
            if not (self.roles.gradients and self.roles.gradients.scaling is not None):
                live.observed[KEY].loss_scale = scale.scale
            yield changed

    def before_step(self, model: torch.nn.Module, live: Live) -> bool:
        """Leave out a step that overflowed, where the scale is dynamic, and set the scale of the next."""
        if self.compute == "native" or live.observed[KEY].loss_scale is None:
            return True
        scale: LossScale = live.observed[_OBSERVED]
        made = scale.step(model)
        live.observed[KEY].loss_scale = scale.scale
        return made

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return what was really rounded and what the loss scale did, or the dtype that hardware gave."""
        found = super().proof(model, live)
        if self.compute == "native" or live.observed[KEY].loss_scale is None:
            return found
        return found | {"loss_scale": live.observed[_OBSERVED].evidence(live.observed[KEY])}


def _without(whole: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in whole.items() if key != name}
