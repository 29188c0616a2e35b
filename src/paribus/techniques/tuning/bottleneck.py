"""The network that an adapter is: d -> m -> d, added to what stands around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

NAME: Final = "bottleneck"
"""The child that an adapted block gets."""


class Bottleneck(torch.nn.Module):
    """scaling * (W_up f(W_down x + b_down) + b_up), computed in its own dtype, answered in that of x.

    W_down is normal with deviation 0.01, drawn from a seed of its own; all else is zero.
    """

    def __init__(
        self, size: int, width: int, non_linearity: torch.nn.Module, scaling: float, seed: int
    ) -> None:
        super().__init__()
        self.down: torch.nn.Linear = _undrawn(size, width)
        self.up: torch.nn.Linear = _undrawn(width, size)
        self.non_linearity, self.scaling = non_linearity, scaling
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            self.down.weight.copy_(0.01 * torch.randn(width, size, generator=generator))
            for parameter in (self.down.bias, self.up.weight, self.up.bias):
                parameter.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.non_linearity(self.down(x.to(self.down.weight.dtype)))
        return (self.scaling * self.up(inner)).to(x.dtype)


@contextmanager
def behind(module: torch.nn.Module, adapter: Bottleneck) -> Iterator[None]:
    """Add to a module's output what the adapter makes of that output."""

    def add(module: Any, _: Any, output: Any) -> Any:
        return _plus(output, module.get_submodule(NAME)(output[0] if isinstance(output, tuple) else output))

    module.add_module(NAME, adapter)
    hook = module.register_forward_hook(add)
    try:
        yield
    finally:
        hook.remove()
        del module._modules[NAME]


@contextmanager
def beside(entry: torch.nn.Module, leaves: torch.nn.Module, adapter: Bottleneck) -> Iterator[None]:
    """Add to the output of `leaves` what the adapter makes of the input of `entry`."""
    seen: list[torch.Tensor] = []

    def note(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[:] = [args[0] if args else next(iter(kwargs.values()))]

    def add(module: Any, _: Any, output: Any) -> Any:
        return _plus(output, module.get_submodule(NAME)(seen.pop()))

    leaves.add_module(NAME, adapter)
    hooks = [entry.register_forward_pre_hook(note, with_kwargs=True), leaves.register_forward_hook(add)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        del leaves._modules[NAME]


def adapters(model: torch.nn.Module) -> list[Bottleneck]:
    """List a model's adapters, in the order of its modules."""
    return [module for module in model.modules() if isinstance(module, Bottleneck)]


NON_LINEARITIES: Final[dict[str, Callable[[], torch.nn.Module]]] = {
    "relu": torch.nn.ReLU,
    "gelu": torch.nn.GELU,
    "swish": torch.nn.SiLU,
    "tanh": torch.nn.Tanh,
}


def _undrawn(inputs: int, outputs: int) -> Any:
    """Make a linear layer without asking the global random state for its values."""
    return torch.nn.utils.skip_init(torch.nn.Linear, inputs, outputs)


def _plus(output: Any, update: torch.Tensor) -> Any:
    return (output[0] + update, *output[1:]) if isinstance(output, tuple) else output + update
