"""What else can be rounded beside the products of linear layers: outputs, attention, the residual stream."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from paribus.techniques.base import NoEffect
from paribus.techniques.precision.formats import FORMATS
from paribus.techniques.precision.recipes import Cast, Recipe
from paribus.techniques.precision.scaling import Scaling, scaled_round
from paribus.techniques.tuning.last_layers import decoder_layers

if TYPE_CHECKING:
    from paribus.techniques.precision.emulate import Options
    from paribus.techniques.precision.tally import Tally


def install(
    name: str,
    model: Any,
    recipe: Recipe,
    options: Options,
    tally: Tally,
    active: Callable[[], bool],
    stack: ExitStack,
) -> None:
    """Install what is asked for beside the products, until the stack is closed.

    Outputs and blocks round what they give in `output_format` and, going back, its gradient; a static scale
    of gradients holds there too. Raises NoEffect where a model has no such place.
    """
    gradients = recipe.input_gradient[0].scaling
    ends = Ends(options.output_format, "none" if isinstance(gradients, str) else gradients, tally)
    acts: Callable[[Any], bool] = lambda module: (module.training or tally.scored) and active()  # noqa: E731
    if options.outputs:
        converted = set(tally.converted)
        linear = [module for path, module in model.named_modules() if path in converted]
        _hook("outputs", linear, ends, tally, acts, stack)
    if options.residual:
        _hook("residual", decoder_layers(_base(model))[1], ends, tally, acts, stack)
    if options.attention:
        _install_attention(name, _base(model), recipe, tally, acts, stack)


def _base(model: Any) -> Any:
    return getattr(model, "get_base_model", lambda: model)()


class Ends:
    """How a tensor between products is rounded on the way forward and its gradient on the way back."""

    def __init__(self, form: str, gradients: Scaling, tally: Tally) -> None:
        self.form, self.tally = form, tally
        self.gradients: Scaling = gradients

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return _cast(values, Cast(self.form))

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        return _cast(gradient, Cast(self.form, self.tally.scaling("gradients", self.gradients)))


class Through(torch.autograd.Function):
    """Round on the way forward, and the gradient on the way back."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, ends: Ends) -> torch.Tensor:
        ctx.ends = ends
        return ends.forward(values)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        return ctx.ends.backward(upstream[0]), None


def _cast(values: torch.Tensor, cast: Cast) -> torch.Tensor:
    """Round an operand whose product sums over its last axis, and give it back its size."""
    if cast.exact:
        return values
    flat = values.reshape(-1, values.shape[-1])
    block = (1, cast.block[1])
    scaling = "tensor" if cast.scaling in ("delayed", "calibrated") else cast.scaling
    found = scaled_round(flat, FORMATS[cast.format], scaling, block=block, power_of_two=cast.power_of_two)
    return found.restored().view(values.shape)


def _hook(
    word: str, modules: list[Any], ends: Ends, tally: Tally, acts: Callable[[Any], bool], stack: ExitStack
) -> None:
    """Round what modules give, in training and where it is scored so."""

    def rounded(module: torch.nn.Module, _: Any, output: Any) -> Any:
        if not acts(module):
            return output
        tally.count(word)
        if isinstance(output, torch.Tensor):
            return Through.apply(output, ends)
        return (Through.apply(output[0], ends), *output[1:])

    for module in modules:
        stack.callback(module.register_forward_hook(rounded).remove)


class RoundedProduct(torch.autograd.Function):
    """left [..., n, k] times right [..., k, m]: operands as activations and, going back, gradients are."""

    @staticmethod
    def forward(ctx: Any, left: torch.Tensor, right: torch.Tensor, recipe: Recipe, tally: Tally) -> Any:
        ctx.recipe, ctx.tally = recipe, tally
        ctx.save_for_backward(left, right)
        operand = recipe.forward[0]
        return _cast(left, operand) @ _cast(right.mT, operand).mT

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        (gradient,), (left, right) = upstream, ctx.saved_tensors
        moving, operand = ctx.recipe.input_gradient[0], ctx.recipe.forward[0]
        moving = replace(moving, scaling=ctx.tally.scaling("gradients", moving.scaling))
        of_left = _cast(gradient, moving) @ _cast(right, operand).mT
        of_right = _cast(left.mT, operand) @ _cast(gradient.mT, moving).mT
        return of_left, of_right, None, None


class _Attention(TorchFunctionMode):
    """Computes torch's attention from rounded products while one module of attention runs."""

    def __init__(self, recipe: Recipe, tally: Tally) -> None:
        super().__init__()
        self.recipe, self.tally = recipe, tally

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self.tally.count("attention")
        return _attended(self.recipe, self.tally, *args, **(kwargs or {}))


def _attended(
    recipe: Recipe,
    tally: Tally,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return softmax(q k^T) v with both products on rounded operands; arguments are torch's."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scores: Any = RoundedProduct.apply(query, key.mT, recipe, tally)
    scores = scores * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    elif attn_mask is not None:
        scores = scores + attn_mask
    shares = torch.nn.functional.dropout(torch.softmax(scores, -1), dropout_p)
    result: Any = RoundedProduct.apply(shares, value, recipe, tally)
    return result


def _install_attention(
    name: str, model: Any, recipe: Recipe, tally: Tally, acts: Callable[[Any], bool], stack: ExitStack
) -> None:
    """Have every module of attention compute its two products from rounded operands."""
    used, way_out = model.config._attn_implementation, "set attention: false"
    if used != "sdpa":
        reason = f"attention: true rounds the products of torch's attention (sdpa), and the model uses {used}"
        raise NoEffect(name, reason, way_out)
    layers = decoder_layers(model)[1]
    modules = [m for layer in layers for m in layer.children() if type(m).__name__.endswith("Attention")]
    if not modules:
        raise NoEffect(name, f"{type(model).__name__} has no module of attention in its layers", way_out)
    for module in modules:
        before = vars(module).get("forward")
        vars(module)["forward"] = functools.partial(_attend, module, module.forward, recipe, tally, acts)
        stack.callback(_restore, module, before)


def _restore(module: Any, before: Any) -> None:
    del vars(module)["forward"]
    if before is not None:
        vars(module)["forward"] = before


def _attend(
    module: Any,
    original: Any,
    recipe: Recipe,
    tally: Tally,
    acts: Callable[[Any], bool],
    *args: Any,
    **named: Any,
) -> Any:
    if not acts(module):
        return original(*args, **named)
    with _Attention(recipe, tally):
        return original(*args, **named)
