"""The base under a tuned model, as it was before anything was put beside its weights."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

SPARE: Final = 1.25
"""Free memory, in sizes of the model, from which on it is held a second time."""


def virtual_tokens(model: Any) -> int:
    """Count the positions of the context that virtual tokens take."""
    config = getattr(model, "active_peft_config", None)
    return config.num_virtual_tokens if config is not None and config.is_prompt_learning else 0


def decoder(model: Any) -> Any:
    """Return what reads on behind a cache: virtual tokens stand in it, and the base alone adds none again.

    peft 0.21 would, as transformers 5.24 hands it the cache under another name.
    """
    return model.get_base_model() if virtual_tokens(model) else model


def last_logits(model: Any) -> dict[str, int]:
    """Return the argument that has a model compute the logits of the last token alone, where it knows one."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(base.forward).parameters else {}


def has_additions(model: Any) -> bool:
    """Say whether tuning has put modules or virtual tokens beside the base's own weights."""
    from peft import PeftModel

    from paribus.techniques.tuning.bottleneck import adapters

    return isinstance(model, PeftModel) or bool(adapters(model))


@contextmanager
def base_alone(model: Any) -> Iterator[Any]:
    """Yield the base without what its tuning has put beside it, and put that back afterwards.

    Layers of peft are taken out rather than switched off: one that is switched off still asks its adapter.
    """
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTuner

    from paribus.score.adapters import _Wiring

    if not isinstance(model, PeftModel):
        with _without_bottlenecks(model):
            yield model
    elif not isinstance(model.base_model, BaseTuner):
        with model.disable_adapter():
            yield model.get_base_model()
    else:
        wiring = _Wiring(list(model.get_base_model().modules()))
        try:
            yield model.base_model.unload()
        finally:
            wiring.restore()


@contextmanager
def _without_bottlenecks(model: Any) -> Iterator[None]:
    """Take bottleneck adapters out of a model, with the hooks through which they are asked."""
    from paribus.techniques.tuning import bottleneck

    hooks, children = [], []
    for module in model.modules():
        for place in (module._forward_hooks, module._forward_pre_hooks):
            if ours := [key for key, hook in place.items() if _is_of(bottleneck, hook)]:
                hooks.append((place, dict(place)))
            for key in ours:
                del place[key]
        if bottleneck.NAME in module._modules:
            children.append((module, dict(module._modules)))
    for module, _ in children:
        del module._modules[bottleneck.NAME]
    try:
        yield
    finally:
        for place, before in hooks:
            place.clear()
            place.update(before)
        for module, before in children:
            module._modules.update(before)


def _is_of(module: Any, hook: Any) -> bool:
    return getattr(hook, "__module__", "") == module.__name__


def copied(model: Any) -> Any:
    """Return a copy of a model on its device, None where there is no room or it cannot be copied."""
    from paribus.score.adapters import _held

    if _free(model.device) < SPARE * _held(model):
        return None
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError, NotImplementedError, MemoryError):
        return None


def _free(device: torch.device) -> int:
    """Return the bytes that are free where a model is."""
    import psutil
    import torch

    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
