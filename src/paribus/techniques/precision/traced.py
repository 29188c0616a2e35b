"""In which dtype matrix products really ran, counted while one optimizer step is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paribus.techniques.base import OF_THIS_PROCESS

PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_scaled_mm_v2", "_scaled_grouped_mm")
"""Operations of torch that multiply matrices; a linear layer ends in one of them on every device."""


@dataclass
class Ran:
    """How many matrix products ran, by the dtype of their operands, forward and backward.

    `steps` counts the optimizer steps that were watched; `scored` says that a model is scored as it trains.
    """

    dtypes: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    mode: Any = field(default=None, metadata=OF_THIS_PROCESS)
    scored: bool = field(default=False, metadata=OF_THIS_PROCESS)

    def begin(self) -> None:
        """Count from now on."""
        if self.mode is None and not self.steps:
            self.mode = _Counting(self.dtypes)
            self.mode.__enter__()

    def end(self) -> None:
        """Count no further."""
        if self.mode is not None:
            self.mode.__exit__(None, None, None)
            self.mode, self.steps = None, self.steps + 1


class _Counting(TorchDispatchMode):
    """Sees every operation under autograd, of the backward pass too."""

    def __init__(self, dtypes: Counter[str]) -> None:
        super().__init__()
        self.dtypes = dtypes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(one not in (torch.Tensor, torch.nn.Parameter) for one in types):
            return NotImplemented  # a tensor of another kind says first what it is made of
        name = func.overloadpacket.__name__
        if name in PRODUCTS:
            operands = [one for one in args if isinstance(one, torch.Tensor) and one.ndim >= 2]
            self.dtypes[_written(operands[-2:])] += 1
        return func(*args, **(kwargs or {}))


def _written(operands: list[torch.Tensor]) -> str:
    names = [str(one.dtype).removeprefix("torch.") for one in operands]
    return " x ".join(dict.fromkeys(names))


@contextmanager
def first_step(model: torch.nn.Module, ran: Ran) -> Iterator[None]:
    """Count from the first forward pass in training on; `Ran.end` ends it after the optimizer step."""

    def begin(module: torch.nn.Module, _: Any) -> None:
        if module.training:
            ran.begin()

    handle = model.register_forward_pre_hook(begin)
    try:
        yield
    finally:
        handle.remove()
        ran.end()
