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
    if find_spec("torchao") is None:
        return Obstacle(
            "native fp8 needs torchao, which is not installed", f"pip install torchao, or {emulated}"
        )
    return None


@contextmanager
def converted(
    model: Any,
    recipe: str,
    high: Callable[[str], bool],
    scored: Callable[[], bool],
    *,
    emulate: bool = False,
) -> Iterator[list[str]]:
    """Put torchao's layers in the place of linear ones, with the same parameters, and take them out again.

    The head, layers with a dimension that is no multiple of 16 and those that `high` names stay. In
    evaluation mode they multiply as the layers before did, but where the model is `scored` as it trains.
    Yields the names of converted layers. Raises NoEffect where none is left. `emulate` is torchao's own, for
    devices without the units.
    """
    from dataclasses import replace

    import torch
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    head, before = model.get_output_embeddings(), dict(model.named_modules())
    config = replace(Float8LinearConfig.from_recipe_name(RECIPES[recipe]), emulate=emulate)

    def taken(module: torch.nn.Module, path: str) -> bool:
        shape = module.weight.shape if isinstance(module, torch.nn.Linear) else (1,)
        return module is not head and not any(size % 16 for size in shape) and not high(path)

    convert_to_float8_training(model, config=config, module_filter_fn=taken)
    changed = [path for path, module in model.named_modules() if before.get(path) is not module]
    try:
        if not changed:
            raise NoEffect("fp8", "torchao converted no linear layer", "set precision: bf16")
        for path in changed:
            module = model.get_submodule(path)
            vars(module)["forward"] = partial(_forward, module, module.forward, scored)
        yield changed
    finally:
        for path in changed:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, before[path])


def _forward(module: Any, rounded: Callable[..., Any], scored: Callable[[], bool], x: torch.Tensor) -> Any:
    from torch.nn.functional import linear

    return rounded(x) if module.training or scored() else linear(x, module.weight, module.bias)
