"""Weights stored in few bits: how, and how far they are from what they were."""

from __future__ import annotations

from typing import Any

import torch

from paribus.techniques.tuning import quantised
from paribus.techniques.tuning.quantised import Format, Storage


def storage(
    quantisation: Format,
    block_size: int = 64,
    *,
    double: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Storage:
    return Storage(quantisation, block_size, double, dtype)


def layer_of(weight: torch.Tensor, how: Storage, bias: bool = False) -> Any:
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias)
    with torch.no_grad():
        linear.weight.copy_(weight)
    return quantised.stored(linear, how)


def error(weight: torch.Tensor, how: Storage) -> float:
    return float((layer_of(weight, how).decoded() - weight).norm() / weight.norm())


def gaussian(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))
