"""The levels of precision whose numbers share a scale in blocks of 32 or 16."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

from paribus.machine import Machine
from paribus.techniques.base import Live, Obstacle, Setting
from paribus.techniques.precision import torchao_fp8
from paribus.techniques.precision.formats import BLOCKED
from paribus.techniques.precision.level import KEY, Compute, Low
from paribus.techniques.precision.recipes import Cast, Recipe, everywhere


class _Blocked(Low):
    """All operands in blocks along the axis that each product sums over."""

    hardware_shapes: ClassVar = True

    def base_recipe(self) -> Recipe:
        form = BLOCKED[self.word]
        return everywhere(Cast(form.element.name, "mx" if form.scale == "e8m0" else "nv"))


class Mxfp8(_Blocked):
    """Compute matrix products in E4M3 in blocks of 32 that share a scale, a power of two.

    Activations, weights and gradients alike, each in blocks along the axis that a product sums over, so it is
    rounded anew for another product. `keep_high` names modules that keep fp32 (globs: `lm_head`, `layers.0`);
    `attention` rounds the products of attention too; `outputs` and `residual` round what layers and blocks
    give to bfloat16; `roles` gives a role another format or scaling. The head and layers with a dimension
    that is no multiple of 16 stay in fp32; a short last block is allowed. Native, by torchao, a dimension has
    to be a multiple of 32, and scales are rounded up, so that nothing saturates.
    """

    paper: ClassVar = "OCP Microscaling Formats v1.0, 2023; Rouhani et al. 2023, arXiv:2310.10537"
    native_dtype: ClassVar = "float8_e4m3fn"

    kind: Literal["mxfp8"] = "mxfp8"
    compute: Compute = "native"

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        """Say why the hardware or torchao cannot do this; emulation runs anywhere."""
        found = super().obstacle(machine, setting)
        if found is not None or self.compute == "emulated":
            return found
        return torchao_fp8.not_installed(self.word)

    @contextmanager
    def natively(self, model: Any, live: Live) -> Iterator[None]:
        """Have linear layers multiply by torchao's products, for the length of training."""
        from paribus.techniques.precision import torchao_mx
        from paribus.techniques.precision.emulate import kept_high

        high = kept_high(self.word, model, self.keep_high)
        with torchao_mx.converted(model, high, lambda: live.observed[KEY]):
            yield

    def trainer_arguments(self) -> dict[str, Any]:
        return {"bf16": True} if self.compute == "native" else {}


class Mxfp6(_Blocked):
    """Compute matrix products in E2M3, six bits, in blocks of 32 that share a scale, a power of two.

    What is rounded, and what `keep_high`, `outputs`, `attention`, `residual` and `roles` change, is as under
    `mxfp8`; the standard's other element is `roles: {gradients: e3m2}`.
    """

    paper: ClassVar = "OCP Microscaling Formats v1.0, 2023; Rouhani et al. 2023, arXiv:2310.10537"
    runs_natively: ClassVar = False

    kind: Literal["mxfp6"] = "mxfp6"
    compute: Compute = "native"


class Mxfp4(_Blocked):
    """Compute matrix products in E2M1, four bits, in blocks of 32 that share a scale, a power of two.

    Rounding is to the nearest, gradients included, and nothing is rotated first. What is rounded, and what
    `keep_high`, `outputs`, `attention`, `residual` and `roles` change, is as under `mxfp8`.
    """

    paper: ClassVar = "OCP Microscaling Formats v1.0, 2023; Rouhani et al. 2023, arXiv:2310.10537"

    kind: Literal["mxfp4"] = "mxfp4"
    compute: Compute = "native"


class Nvfp4(_Blocked):
    """Compute matrix products in E2M1 in blocks of 16 with a scale in E4M3, and one in fp32 for the tensor.

    Rounding is to the nearest, gradients included; NVIDIA's recipe for pretraining adds stochastic rounding
    of gradients, rotations and 16 x 16 blocks of weights, which are not part of this. What is rounded, and
    what `keep_high`, `outputs`, `attention`, `residual` and `roles` change, is as under `mxfp8`.
    """

    paper: ClassVar = "NVIDIA 2025, arXiv:2509.25149"

    kind: Literal["nvfp4"] = "nvfp4"
    compute: Compute = "native"
