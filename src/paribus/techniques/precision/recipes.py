"""Which number format each role of a matrix product uses: the levels of the precision axis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from paribus.machine import Machine
from paribus.techniques.base import Live, Obstacle, Setting, Technique
from paribus.techniques.precision import native
from paribus.techniques.precision.formats import BF16, E4M3, E5M2, FP16, Format, Role
from paribus.techniques.precision.scaling import LOSS_SCALE, Scaling

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from paribus.techniques.precision.emulate import Recipe

Compute = Literal["native", "emulated"]


class Fp32(Technique):
    """Compute in 32-bit floats: nothing is rounded."""

    kind: Literal["fp32"] = "fp32"

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the dtypes of the parameters, which are also those of their products."""
        return {"parameter_dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()})}


class _Low(Technique):
    """What the low-precision levels share: native through the Trainer, or emulated, a format a role."""

    native_dtype: ClassVar[str] = ""
    hardware_shapes: ClassVar[bool] = False
    formats: ClassVar[dict[Role, Format]] = {}

    compute: Compute = "native"

    def scaling_of(self, role: Role) -> Scaling:
        """Say how a role's operands are scaled before they are rounded."""
        return "none"

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        return native.obstacle(_kind(self), machine) if self.compute == "native" else None

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Convert the linear layers, or watch what the hardware does."""
        if self.compute == "native":
            with native.watched(model, live) as changed:
                yield changed
            return
        from paribus.techniques.precision.emulate import emulated

        recipe: Recipe = {role: (form, self.scaling_of(role)) for role, form in self.formats.items()}
        with emulated(_kind(self), model, live, recipe, hardware_shapes=self.hardware_shapes) as changed:
            yield changed

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return what was really rounded, or the dtype that the hardware really gave."""
        if self.compute == "native":
            return native.evidence(_kind(self), self.native_dtype, live)
        from paribus.techniques.precision.emulate import evidence

        return evidence(_kind(self), live) | {
            "formats": {role: form.name for role, form in self.formats.items()},
            "scaling": {role: self.scaling_of(role) for role in self.formats},
        }


def _kind(technique: Technique) -> str:
    return getattr(technique, "kind")  # noqa: B009  (each level declares its own literal)


class Bf16(_Low):
    """Compute matrix products in bfloat16 with fp32 accumulation and fp32 master weights."""

    paper: ClassVar = "Kalamkar et al. 2019, arXiv:1905.12322"
    native_dtype: ClassVar = "bfloat16"
    formats: ClassVar[dict[Role, Format]] = {"activations": BF16, "weights": BF16, "gradients": BF16}

    kind: Literal["bf16"] = "bf16"
    compute: Compute = "native"

    def trainer_arguments(self) -> dict[str, Any]:
        return {"bf16": True} if self.compute == "native" else {}


class Fp16(_Low):
    """Compute matrix products in IEEE half precision with a loss scale and fp32 master weights.

    Native, the scale is dynamic and a step that overflows is left out; emulated, it is static and applied
    where gradients are rounded, and a gradient that overflows ends the trial as diverged.
    """

    paper: ClassVar = "Micikevicius et al. 2017, arXiv:1710.03740"
    native_dtype: ClassVar = "float16"
    formats: ClassVar[dict[Role, Format]] = {"activations": FP16, "weights": FP16, "gradients": FP16}

    kind: Literal["fp16"] = "fp16"
    compute: Compute = "native"

    def trainer_arguments(self) -> dict[str, Any]:
        return {"fp16": True} if self.compute == "native" else {}

    def scaling_of(self, role: Role) -> Scaling:
        return LOSS_SCALE if role == "gradients" else "none"


class Fp8(_Low):
    """Compute matrix products in 8-bit floats.

    `recipe: standard` puts E4M3 on weights and activations and E5M2 on gradients; `scaling: tensor` divides
    each operand by its largest magnitude over the format's largest value before rounding, `none` does not.
    The head and layers with a dimension that is no multiple of 16 (small LoRA matrices) stay in fp32.
    """

    paper: ClassVar = "Micikevicius et al. 2022, arXiv:2209.05433"
    hardware_shapes: ClassVar = True
    formats: ClassVar[dict[Role, Format]] = {"activations": E4M3, "weights": E4M3, "gradients": E5M2}

    kind: Literal["fp8"] = "fp8"
    recipe: Literal["standard"] = "standard"
    scaling: Literal["tensor", "none"] = "tensor"
    compute: Compute = "native"

    def scaling_of(self, role: Role) -> Scaling:
        return self.scaling
