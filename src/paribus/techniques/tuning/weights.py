"""Which parameters train, and evidence of which ones moved."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.techniques.base import Live, NoEffect

if TYPE_CHECKING:
    import torch

Digests = Mapping[str, str]
"""SHA-256 of each parameter's name, dtype, shape and bytes, by name."""


def digests(model: torch.nn.Module) -> dict[str, str]:
    """Hash every parameter of a model; a tied one is hashed once."""
    return {name: _digest(name, parameter) for name, parameter in model.named_parameters()}


def _digest(name: str, parameter: torch.nn.Parameter) -> str:
    import torch

    content = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    head = f"{name}|{parameter.dtype}|{tuple(parameter.shape)}|".encode()
    return hashlib.sha256(head + content.tobytes()).hexdigest()


def combined(parts: Digests, names: Iterable[str]) -> str:
    """Hash the digests of some parameters into one."""
    return hashlib.sha256("".join(parts[name] for name in sorted(names)).encode()).hexdigest()


def trainable(model: torch.nn.Module) -> list[str]:
    """Name the parameters that train."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


@contextmanager
def training_only(model: torch.nn.Module, chosen: Callable[[str], bool]) -> Iterator[None]:
    """Let the chosen parameters train and no other, and put back what trained before."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(chosen(name))
        yield
    finally:
        for parameter, flag in before.items():
            parameter.requires_grad_(flag)


def save(model: torch.nn.Module, file: Path) -> None:
    """Write the parameters that train, by name, as safetensors."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    chosen = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters() if p.requires_grad}
    save_file(chosen, file)


def load(model: torch.nn.Module, file: Path) -> None:
    """Put back what `save` wrote; raises ValueError where names or shapes differ from what trains."""
    import torch
    from safetensors.torch import load_file

    stored = load_file(file)
    chosen = {name: p for name, p in model.named_parameters() if p.requires_grad}
    differing = sorted(
        name
        for name in stored.keys() | chosen.keys()
        if name not in stored or name not in chosen or stored[name].shape != chosen[name].shape
    )
    if differing:
        raise ValueError(f"{file} does not fit what trains: {', '.join(differing[:3])}")
    with torch.no_grad():
        for name, parameter in chosen.items():
            parameter.copy_(stored[name])


def remember(model: torch.nn.Module, live: Live) -> None:
    """Keep the digests of the weights that training starts from."""
    live.observed["initial_weights"] = digests(model)


def movement(technique: str, model: torch.nn.Module, live: Live) -> dict[str, Any]:
    """Return which parameters train, how many moved since `remember`, and that no frozen one did.

    Raises NoEffect where none moved. A frozen parameter that moved is a fault of paribus: RuntimeError.
    """
    before: Digests = live.observed["initial_weights"]
    after = live.observed["final_weights"] = digests(model)
    names = set(trainable(model))
    moved = {name for name in after if after[name] != before[name]}
    if moved - names:
        first = ", ".join(sorted(moved - names)[:3])
        raise RuntimeError(f"frozen parameters moved under {technique}: {first}")
    if not moved:
        raise NoEffect(technique, "no parameter moved during training", "train for at least one step")
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    count, total = sum(sizes[name] for name in names), sum(sizes.values())
    return {
        "trainable_parameters": count,
        "total_parameters": total,
        "trainable_share": count / total,
        "trainable_names": patterns(names),
        "tensors_moved": len(moved),
        "tensors_unmoved": sorted(names - moved)[:3],
        "frozen_tensors_unchanged": len(after) - len(names),
    }


def patterns(names: Iterable[str], most: int = 4) -> list[str]:
    """Shorten parameter names to their kinds: layer numbers become `*`, and at most `most` are listed."""
    kinds = sorted({re.sub(r"\.\d+\.", ".*.", name.removeprefix("base_model.model.")) for name in names})
    return kinds if len(kinds) <= most else [*kinds[:most], f"and {len(kinds) - most} more"]
