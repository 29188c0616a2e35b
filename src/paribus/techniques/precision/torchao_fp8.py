"""8-bit products by torchao, on devices whose matrix units have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from paribus.techniques.base import NoEffect, Obstacle

if TYPE_CHECKING:
    import torch

    from paribus.techniques.precision.traced import Ran

RECIPES: Final = {
    "standard": "tensorwise",
    "tensorwise": "tensorwise",
    "rowwise": "rowwise",
    "rowwise_with_gw_hp": "rowwise_with_gw_hp",
}
"""Our recipes by torchao's names (`torchao.float8.Float8LinearRecipeName`, 0.18)."""


def obstacle(recipe: str, scaling: str) -> Obstacle | None:
    """Say why torchao cannot train in a recipe here, its hardware aside."""
    emulated = "set compute: emulated"
    if recipe not in RECIPES or (recipe == "standard" and scaling != "tensor"):
        reason = f"torchao has no recipe {recipe} with scaling {scaling}"
        return Obstacle(reason, f"{emulated}, or take recipe: {', '.join(RECIPES)}")
    return not_installed("fp8")


def not_installed(kind: str) -> Obstacle | None:
    """Say that torchao is missing, where it is."""
    if find_spec("torchao") is not None:
        return None
    way_out = "pip install 'paribus[fp8]', or set compute: emulated"
    return Obstacle(f"native {kind} needs torchao, which is not installed", way_out)


@contextmanager
def converted(
    model: Any,
    recipe: str,
    high: Callable[[str], bool],
    ran: Callable[[], Ran],
    *,
    emulate: bool = False,
) -> Iterator[list[str]]:
    """Put torchao's layers in the place of linear ones, with the same parameters, and take them out again.

    The head, layers with a dimension that is no multiple of 16 and those that `high` names stay. In
    evaluation mode they multiply as the layers before did, but where the model is scored as it trains. A sum
    over tokens that are no multiple of 16 gets zeros. Yields the names of converted layers. Raises NoEffect
    where none is left. `emulate` is torchao's own, for devices without the units.
    """
    from dataclasses import replace

    from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # type: ignore[import-not-found]

    before = dict(model.named_modules())
    config = replace(
        Float8LinearConfig.from_recipe_name(RECIPES[recipe]), emulate=emulate, pad_inner_dim=True
    )
    taken = suitable(model, 16, high)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda module, path: path in taken)
    changed = [path for path, module in model.named_modules() if before.get(path) is not module]
    try:
        if not changed:
            raise NoEffect("fp8", "torchao converted no linear layer", "set precision: bf16")
        for path in changed:
            module = model.get_submodule(path)
            vars(module)["forward"] = partial(forward, path, module, module.forward, ran)
        yield changed
    finally:
        for path in changed:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, before[path])


def suitable(model: Any, multiple: int, high: Callable[[str], bool]) -> set[str]:
    """Name the linear layers that 8-bit kernels take: not the head, nor those with other dimensions."""
    import torch

    head = model.get_output_embeddings()
    return {
        path
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
        if not any(size % multiple for size in module.weight.shape) and not high(path)
    }


def forward(
    path: str, module: Any, rounded: Callable[..., Any], ran: Callable[[], Ran], x: torch.Tensor
) -> Any:
    """Multiply in 8 bits in training and where it is scored so; a pass without such a product is noted."""
    from torch.nn.functional import linear

    seen = ran()
    if not (module.training or seen.scored):
        return linear(x, module.weight, module.bias)
    before = seen.eight_bit()
    output = rounded(x)
    if seen.mode is not None:
        seen.low.setdefault(path, 0)
        seen.low[path] += seen.eight_bit() - before
    return output
