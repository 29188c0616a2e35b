"""Low precision on any device: the operands of every linear layer's products are rounded, sums stay in fp32.

Three products are emulated: forward (activations x weights), input gradient (gradients x weights) and weight
gradient (gradients x activations). Each operand is rounded to the format of its role and the product is
computed in fp32, as matrix units with fp32 accumulators do. What this leaves out: outputs are not rounded,
attention products, norms and softmax stay in fp32, and bias gradients are sums of unrounded gradients.
In evaluation mode nothing is rounded.

This module imports torch, so `recipes` imports it only when a recipe is applied.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from transformers.pytorch_utils import Conv1D

from paribus.techniques.base import Live, NoEffect
from paribus.techniques.precision.formats import Format, Role
from paribus.techniques.precision.scaling import Rounded, Scaling, scaled_round

Recipe = Mapping[Role, tuple[Format, Scaling]]

MEASURED_EVERY: Final = 16
"""Rounding errors are measured on every 16th optimizer step: on all it would cost a third of the time."""


@dataclass
class Tally:
    """What emulation did: modules converted and left alone, rounded products, largest error by role."""

    converted: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    products: Counter[str] = field(default_factory=Counter)
    errors: dict[str, torch.Tensor] = field(default_factory=dict)

    def measure(self, role: Role, exact: torch.Tensor, rounded: Rounded) -> None:
        """Keep the largest norm of a tensor's rounding error over the tensor's norm."""
        size = torch.linalg.vector_norm(exact.float()).clamp(min=torch.finfo(torch.float32).tiny)
        error = torch.linalg.vector_norm((rounded.restored() - exact).float()) / size
        self.errors[role] = torch.maximum(self.errors.get(role, torch.zeros_like(error)), error)


class _Site:
    """One converted module: how its operands are rounded, and its rounded weight while that still holds."""

    def __init__(self, module: torch.nn.Linear | Conv1D, recipe: Recipe, live: Live, tally: Tally) -> None:
        self.module, self.recipe, self.live, self.tally = module, recipe, live, tally
        self.kept: tuple[tuple[int, int], Rounded] | None = None

    def round(self, role: Role, values: torch.Tensor) -> Rounded:
        form, scaling = self.recipe[role]
        rounded = scaled_round(values, form, scaling)
        if self.live.step % MEASURED_EVERY == 0:
            self.tally.measure(role, values, rounded)
        return rounded

    def weight(self, weight: torch.Tensor) -> Rounded:
        """Round the weight once for all micro-batches of an optimizer step, and never across one."""
        key = (self.live.step, self.module.weight._version)
        if self.kept is None or self.kept[0] != key:
            self.kept = key, self.round("weights", weight.detach())
        return self.kept[1]


def _product(left: torch.Tensor, right: torch.Tensor, *scales: torch.Tensor | float | None) -> torch.Tensor:
    """Multiply rounded operands and scale the sums back."""
    product = left @ right
    for scale in scales:
        if scale is not None:
            product *= scale
    return product


class _RoundedLinear(torch.autograd.Function):
    """x [n, in] times weight [out, in], plus bias: a linear layer's three products on rounded operands."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, site: _Site) -> Any:
        inputs, weights = site.round("activations", x), site.weight(weight)
        ctx.save_for_backward(inputs.values, weights.values)
        ctx.scales, ctx.site, ctx.dtypes = (inputs.scale, weights.scale), site, (x.dtype, weight.dtype)
        site.tally.products["forward"] += 1
        output = _product(inputs.values, weights.values.t(), inputs.scale, weights.scale)
        if bias is not None:
            output += bias
        return output

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        (gradient,) = upstream
        (inputs, weights), (input_scale, weight_scale) = ctx.saved_tensors, ctx.scales
        of_input = of_weight = of_bias = None
        rounded = ctx.site.round("gradients", gradient)
        if ctx.needs_input_grad[0]:
            ctx.site.tally.products["input_gradient"] += 1
            of_input = _product(rounded.values, weights, rounded.scale, weight_scale)
        if ctx.needs_input_grad[1]:
            ctx.site.tally.products["weight_gradient"] += 1
            of_weight = _product(rounded.values.t(), inputs, rounded.scale, input_scale)
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum(0)
        return of_input, of_weight, of_bias, None


def _forward(module: Any, site: _Site, original: Any, x: torch.Tensor) -> torch.Tensor:
    if not module.training:
        return original(x)
    weight = module.weight.t() if isinstance(module, Conv1D) else module.weight
    dtype = torch.promote_types(x.dtype, torch.float32)
    bias = None if module.bias is None else module.bias.to(dtype)
    flat = x.to(dtype).reshape(-1, x.shape[-1])
    output: Any = _RoundedLinear.apply(flat, weight.to(dtype), bias, site)
    return output.view(*x.shape[:-1], -1).to(x.dtype)


@contextmanager
def emulated(
    name: str, model: Any, live: Live, recipe: Recipe, *, hardware_shapes: bool = False
) -> Iterator[torch.nn.Module]:
    """Round in every linear layer of a model (nn.Linear and Conv1D) for the length of a training run.

    With `hardware_shapes` the head and layers with a dimension that is no multiple of 16 are left alone, as
    kernels for 8-bit matrix products leave them. Raises NoEffect where no layer is left.
    """
    tally = live.observed["precision"] = Tally()
    head = model.get_output_embeddings() if hardware_shapes else None
    changed: list[torch.nn.Module] = []
    try:
        for path, module in model.named_modules():
            if not isinstance(module, torch.nn.Linear | Conv1D):
                continue
            if reason := _skipped(module, head) if hardware_shapes else None:
                tally.skipped[path] = reason
                continue
            site = _Site(module, recipe, live, tally)
            vars(module)["forward"] = functools.partial(_forward, module, site, module.forward)
            changed.append(module)
            tally.converted.append(path)
        if not changed:
            raise NoEffect(name, "the model has no linear layer to convert", "set precision: fp32")
        yield model
    finally:
        for module in changed:
            del vars(module)["forward"]


def _skipped(module: torch.nn.Linear | Conv1D, head: torch.nn.Module | None) -> str | None:
    if module is head:
        return "head"
    return "shape" if any(size % 16 for size in module.weight.shape) else None


def evidence(name: str, live: Live) -> dict[str, Any]:
    """Return what was converted, how many products were rounded and the largest error by role.

    An error is the norm of a tensor's rounding error over the norm of the tensor. Raises NoEffect where no
    product was rounded or no number was changed by it.
    """
    tally: Tally = live.observed["precision"]
    errors = {role: float(error) for role, error in tally.errors.items() if math.isfinite(error)}
    if not tally.products or not any(errors.values()):
        raise NoEffect(name, "no product of the training run was rounded", "set precision: fp32")
    skipped = Counter(tally.skipped.values())
    return {
        "compute": "emulated",
        "modules_converted": len(tally.converted),
        "for_example": [_short(path) for path in tally.converted[:2]],
        "modules_skipped": dict(skipped),
        "skipped_for_example": [_short(path) for path in list(tally.skipped)[:2]],
        "rounded_products": dict(tally.products),
        "largest_rounding_error": errors,
    }


def _short(path: str) -> str:
    return path.removeprefix("base_model.model.")
