"""Linear layers whose three products are in FP8: torchao's where it is installed, else torch's alone."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import torch


def eight_bit_layers(model: Any) -> str:
    """Have linear layers but the head and small ones multiply in FP8, scaled by tensor; return by whom."""
    chosen = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "lm_head" not in path
        if not any(size % 16 for size in module.weight.shape)
    }
    if find_spec("torchao") is None:
        for module in chosen.values():
            module.forward = partial(forward, module)
        return "torch._scaled_mm"
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(pad_inner_dim=True)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _, path: path in chosen)
    return "torchao"


def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
    """Compute x [..., in] times a layer's weight [out, in], plus its bias."""
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    output: Any = Scaled.apply(x.reshape(-1, x.shape[-1]).to(dtype), module.weight)
    if module.bias is not None:
        output = output + module.bias.to(dtype)
    return output.view(*x.shape[:-1], -1)


class Scaled(torch.autograd.Function):
    """E4M3 for activations and weights, E5M2 for gradients, one scale a tensor (arXiv:2209.05433)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight.t(), torch.float8_e4m3fn)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        (gradient,), (x, weight) = upstream, ctx.saved_tensors
        of_input = _product(gradient, weight, torch.float8_e5m2) if ctx.needs_input_grad[0] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            fill = (0, 0, 0, -x.shape[0] % 16)  # the kernel sums over multiples of 16
            rows, inputs = (torch.nn.functional.pad(one, fill) for one in (gradient, x))
            of_weight = _product(rows.t(), inputs, torch.float8_e5m2).to(weight.dtype)
        return of_input, of_weight


def _product(left: torch.Tensor, right: torch.Tensor, of_left: torch.dtype) -> torch.Tensor:
    """Multiply [n, k] by [k, m] in FP8; the kernel takes rows on the left and columns on the right."""
    rows, scale = _cast(left, of_left)
    columns, other = _cast(right, torch.float8_e4m3fn)
    columns = columns.t().contiguous().t()
    return torch._scaled_mm(rows.contiguous(), columns, scale, other, out_dtype=left.dtype)


def _cast(values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values that the format holds, and the scale that gives their size back."""
    scale = values.abs().amax().float().clamp(min=1e-12) / torch.finfo(dtype).max
    return (values.float() / scale).to(dtype), scale
