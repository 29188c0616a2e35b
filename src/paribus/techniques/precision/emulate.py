"""Low precision on any device: the operands of every linear layer's products are rounded, sums stay in fp32.

Three products are emulated: forward (activations x weights), input gradient (gradients x weights) and weight
gradient (gradients x activations). Each operand is rounded as the recipe says and the product is computed in
fp32, as matrix units with fp32 accumulators do. What this leaves out unless it is asked for (`around`):
outputs, attention products and the residual stream. Norms and softmax stay in fp32, and bias gradients are
sums of unrounded gradients. In evaluation mode nothing is rounded but where it is scored as trained.

This module imports torch, so the levels import it only when one is applied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from paribus.techniques.base import Live, NoEffect
from paribus.techniques.precision import around
from paribus.techniques.precision.monitor import short
from paribus.techniques.precision.recipes import Operand, Product, Recipe
from paribus.techniques.precision.scaling import History, Rounded, scaled_round
from paribus.techniques.precision.tally import Tally


@dataclass(frozen=True)
class Options:
    """What is rounded beside the products of linear layers, and which modules are not.

    `output_format` is what outputs and the residual stream are rounded to. With `hardware_shapes` the head
    and layers with a dimension that is no multiple of 16 are left alone, as kernels for 8-bit products do.
    """

    keep_high: Sequence[str] = ()
    outputs: bool = False
    attention: bool = False
    residual: bool = False
    output_format: str = "bf16"
    hardware_shapes: bool = False


class Site:
    """One converted module: how its operands are rounded, and its rounded weights while these still hold."""

    def __init__(self, path: str, module: Any, recipe: Recipe, live: Live, tally: Tally) -> None:
        self.path, self.module, self.live, self.tally = path, module, live, tally
        self.forward = recipe.operands("forward")
        self.input_gradient = recipe.operands("input_gradient")
        self.weight_gradient = recipe.operands("weight_gradient")
        self.kept: dict[Operand, Rounded] = {}
        self.kept_of: tuple[int, int, bool] | None = None
        for operand in (*self.forward, *self.input_gradient, *self.weight_gradient):
            if operand.cast.scaling in ("delayed", "calibrated"):
                tally.histories.setdefault(self._key(operand), History())

    def _key(self, operand: Operand) -> str:
        return f"{self.path} {operand.role} {operand.cast}"

    def round(self, operand: Operand, values: torch.Tensor) -> Rounded:
        """Round an operand; in training it is measured now and then, and remembered where scales are."""
        cast, tally, step = operand.cast, self.tally, self.live.step
        if cast.exact:
            return Rounded(values, None)
        form, history = cast.form, tally.histories.get(self._key(operand)) if tally.histories else None
        if history is not None and not tally.scored:
            history.turn(step)
        axis, block, power = operand.axis, cast.block, cast.power_of_two
        scaling = tally.scaling(operand.role, cast.scaling)
        rounded = scaled_round(
            values, form, scaling, axis=axis, block=block, power_of_two=power, history=history
        )
        if history is not None and not tally.scored:
            history.see(values.detach().abs().amax(), step)
        if tally.measures(step):
            tally.measure(operand.role, step, form, values, rounded)
        return rounded

    def weight(self, operand: Operand, weight: torch.Tensor) -> Rounded:
        """Round the weight once for all micro-batches of an optimizer step, and never across one."""
        now = (self.live.step, self.module.weight._version, self.tally.scored)
        if self.kept_of != now:
            self.kept, self.kept_of = {}, now
        if operand not in self.kept:
            self.kept[operand] = self.round(operand, weight.detach())
        return self.kept[operand]


def product(left: Rounded, right: Rounded) -> torch.Tensor:
    """Multiply rounded matrices [n, k] and [k, m], and scale the sums back.

    A scale that varies along k cannot be taken out of the sums: such an operand is scaled before them.
    """
    left = left if _constant(left, 1) else Rounded(left.restored(), None)
    right = right if _constant(right, 0) else Rounded(right.restored(), None)
    result = left.values @ right.values
    for scale in (left.scale, right.scale):
        if scale is not None:
            result *= scale
    return result


def _constant(operand: Rounded, axis: int) -> bool:
    scale = operand.scale
    return not isinstance(scale, torch.Tensor) or scale.ndim == 0 or scale.shape[axis] == 1


class _RoundedLinear(torch.autograd.Function):
    """x [n, in] times weight [out, in], plus bias: a linear layer's three products on rounded operands.

    A tensor that is cast alike for two products is rounded once.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, site: Site) -> Any:
        inputs = site.round(site.forward[0], x)
        weights = site.weight(site.forward[1], weight)
        ctx.once = site.weight_gradient[1] == site.forward[0]
        trains = ctx.needs_input_grad[1]
        ctx.save_for_backward((inputs.values if ctx.once else x) if trains else None, weight)
        ctx.scale, ctx.site = inputs.scale, site
        site.tally.count("forward")
        output = product(inputs, weights.t())
        if bias is not None:
            output += bias
        return output

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        (gradient,), site, (x, weight) = upstream, ctx.site, ctx.saved_tensors
        of_input = of_weight = of_bias = rounded = None
        if ctx.needs_input_grad[0]:
            rounded = site.round(site.input_gradient[0], gradient)
            of_input = _counted("input_gradient", site, rounded, site.weight(site.input_gradient[1], weight))
        if ctx.needs_input_grad[1]:
            if rounded is None or site.weight_gradient[0] != site.input_gradient[0]:
                rounded = site.round(site.weight_gradient[0], gradient)
            inputs = Rounded(x, ctx.scale) if ctx.once else site.round(site.weight_gradient[1], x)
            of_weight = _counted("weight_gradient", site, rounded.t(), inputs)
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum(0)
        return of_input, of_weight, of_bias, None


def _counted(name: Product, site: Site, left: Rounded, right: Rounded) -> torch.Tensor:
    site.tally.count(name)
    return product(left, right)


def _forward(module: Any, site: Site, active: Callable[[], bool], original: Any, x: torch.Tensor) -> Any:
    if not ((module.training or site.tally.scored) and active()):
        return original(x)
    weight = module.weight.t() if isinstance(module, Conv1D) else module.weight
    dtype = torch.promote_types(x.dtype, torch.float32)
    bias = None if module.bias is None else module.bias.to(dtype)
    flat = x.to(dtype).reshape(-1, x.shape[-1])
    output: Any = _RoundedLinear.apply(flat, weight.to(dtype), bias, site)
    return output.view(*x.shape[:-1], -1).to(x.dtype)


def _always() -> bool:
    return True


@contextmanager
def emulated(
    name: str,
    model: Any,
    live: Live,
    recipe: Recipe,
    options: Options | None = None,
    *,
    active: Callable[[], bool] | None = None,
) -> Iterator[torch.nn.Module]:
    """Round in the linear layers of a model (nn.Linear and Conv1D) for the length of a training run.

    What is done is kept in `live.observed["precision"]`; nothing is rounded while `active` says no. Raises
    NoEffect where no layer is left to convert, or a name of `keep_high` is that of no module.
    """
    options, acts = options or Options(), active or _always
    tally = live.observed["precision"] = Tally()
    head = model.get_output_embeddings() if options.hardware_shapes else None
    high = kept_high(name, model, options.keep_high)
    changed: list[tuple[Any, Any]] = []
    with ExitStack() as stack:
        stack.callback(_put_back, changed)
        for path, module in list(model.named_modules()):
            if not isinstance(module, torch.nn.Linear | Conv1D):
                continue
            if reason := _skipped(path, module, head, high, options):
                tally.skipped[path] = reason
                continue
            site = Site(path, module, recipe, live, tally)
            changed.append((module, vars(module).get("forward")))
            vars(module)["forward"] = functools.partial(_forward, module, site, acts, module.forward)
            tally.converted.append(path)
        if not changed:
            raise NoEffect(name, "the model has no linear layer to convert", "set precision: fp32")
        around.install(name, model, recipe, options, tally, acts, stack)
        yield model


def _put_back(changed: list[tuple[Any, Any]]) -> None:
    """Take the rounding off; a forward that was there before, another emulation's, stands again."""
    for module, before in changed:
        del vars(module)["forward"]
        if before is not None:
            vars(module)["forward"] = before


def _skipped(path: str, module: Any, head: Any, high: Callable[[str], bool], options: Options) -> str | None:
    if module is head:
        return "head"
    if high(path):
        return "kept high"
    return "shape" if options.hardware_shapes and any(size % 16 for size in module.weight.shape) else None


def _within(path: str, pattern: str) -> bool:
    """Say whether a glob names a module or one that it is inside of: `layers.0` and `*.mlp` do."""
    return fnmatchcase(f".{short(path)}.", f"*.{pattern}.*")


def kept_high(name: str, model: torch.nn.Module, patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return what says whether a path is kept high; NoEffect for a name that is no module's."""
    paths = [path for path, _ in model.named_modules()]
    for pattern in patterns:
        if not any(_within(path, pattern) for path in paths):
            example = next((short(path) for path in paths if path.endswith(".0")), "lm_head")
            raise NoEffect(name, f"keep_high: {pattern} is the name of no module", f"write it as {example}")
    return lambda path: any(_within(path, pattern) for pattern in patterns)
