"""The optimizers by their names in a study, and what they really keep: bytes, and elements in 8 bits."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

OPTIMIZERS: Final = {
    "adamw": "adamw_torch_fused",
    "sgd": "sgd",
    "adamw_8bit": "adamw_8bit",
    "paged_adamw_32bit": "paged_adamw_32bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
}
"""The Trainer's names of the optimizers. Fused AdamW does the same sums in one pass over each parameter."""


@contextmanager
def apart() -> Iterator[None]:
    """Keep from bitsandbytes what earlier trainings of this process have told it, and leave nothing behind.

    It notes which tensors stay in 32 bits by their place in the optimizer, in one list for all of them. Its
    warning about pages on a CPU is told by `shortfalls`, in the result.
    """
    before = _notes()
    if before:
        _manager().initialize()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Paged optimizers are not supported on CPU")
            yield
    finally:
        if _notes():
            _manager().initialize()
            vars(_manager()).update(before)


def _manager() -> Any:
    return sys.modules["bitsandbytes.optim"].GlobalOptimManager.get_instance()


def _notes() -> dict[str, Any]:
    return dict(vars(_manager())) if "bitsandbytes.optim" in sys.modules else {}


def evidence(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's class, bytes of state by dtype, bytes paged, and elements with 8-bit states."""
    inner = getattr(optimizer, "optimizer", optimizer)
    tensors = {
        tensor.data_ptr(): tensor
        for state in inner.state.values()
        for tensor in state.values()
        if isinstance(tensor, torch.Tensor)
    }
    sizes: Counter[str] = Counter()
    paged = 0
    for tensor in tensors.values():
        size = tensor.numel() * tensor.element_size()
        sizes[str(tensor.dtype).removeprefix("torch.")] += size
        paged += size * bool(getattr(tensor, "is_paged", False))
    return {
        "optimizer_class": f"{type(inner).__module__}.{type(inner).__name__}",
        "optimizer_state_bytes": dict(sorted(sizes.items())),
        "optimizer_bytes_paged": paged,
        "optimizer_elements": sum(p.numel() for group in inner.param_groups for p in group["params"]),
        "optimizer_elements_in_8_bit": sum(
            p.numel() for p, state in inner.state.items() if _in_8_bit(p, state)
        ),
    }


def decayed(optimizer: Any) -> int:
    """Count the elements that weight decay acts on."""
    groups = getattr(optimizer, "optimizer", optimizer).param_groups
    return sum(p.numel() for group in groups if group["weight_decay"] for p in group["params"])


def _in_8_bit(parameter: torch.Tensor, state: dict[str, Any]) -> bool:
    return any(
        isinstance(tensor, torch.Tensor) and tensor.dtype == torch.uint8 and tensor.shape == parameter.shape
        for tensor in state.values()
    )


def shortfalls(name: str, found: dict[str, Any], device: torch.device) -> list[str]:
    """Say what of an optimizer's name is not so in this training, from its evidence."""
    said = []
    small, all_of_them = found["optimizer_elements_in_8_bit"], found["optimizer_elements"]
    if name.endswith("8bit") and small < all_of_them:
        kept = f"{small:,} of {all_of_them:,}" if small else f"none of {all_of_them:,}"
        said.append(
            f"{name} keeps the state of {kept} elements in 8 bits: bitsandbytes keeps that of embeddings "
            "and of tensors with fewer than 4,096 elements in 32"
        )
    if name.startswith("paged") and not found["optimizer_bytes_paged"]:
        why = "on a CPU" if device.type == "cpu" else "of tensors with fewer than 100,000 elements"
        said.append(f"{name}: nothing is paged {why}; this is the optimizer of that name without pages")
    return said
