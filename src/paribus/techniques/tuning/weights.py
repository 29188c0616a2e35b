"""Which parameters train, and evidence of which ones moved."""

from __future__ import annotations

import hashlib
import math
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
    head = f"{name}|{parameter.dtype}|{tuple(parameter.shape)}|".encode()
    return hashlib.sha256(head + content(parameter)).hexdigest()


def content(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's numbers."""
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def combined(parts: Digests, names: Iterable[str]) -> str:
    """Hash the digests of some parameters into one."""
    return hashlib.sha256("".join(parts[name] for name in sorted(names)).encode()).hexdigest()


def trainable(model: torch.nn.Module) -> list[str]:
    """Name the parameters that train."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def elements(parameter: torch.nn.Parameter) -> int:
    """Count the weights a parameter stands for: a byte of 4-bit codes holds two."""
    return math.prod(getattr(getattr(parameter, "quant_state", None), "shape", parameter.shape))


def heads(model: torch.nn.Module) -> tuple[str, ...]:
    """Return how the names of what trains under every tuning begin: in modules marked `always_trains`."""
    modules = model.named_modules()
    return tuple(f"{path}." for path, module in modules if getattr(module, "always_trains", False))


def train_heads(model: torch.nn.Module) -> None:
    """Let heads train, also after a library has frozen all that it has not added."""
    begin = heads(model)
    for name, parameter in model.named_parameters():
        if name.startswith(begin):
            parameter.requires_grad_(True)


@contextmanager
def training_only(model: torch.nn.Module, chosen: Callable[[str], bool]) -> Iterator[None]:
    """Let the chosen parameters train, heads, and no other; put back what trained before."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(chosen(name))
        train_heads(model)
        yield
    finally:
        for parameter, flag in before.items():
            parameter.requires_grad_(flag)


def learnt(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return what a training leaves, by name: the parameters that train and the statistics kept beside them.

    Statistics are the buffers of a module that has trainable parameters of its own, such as running means.
    """
    found: dict[str, torch.Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for path, module in model.named_modules():
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            kept = module.state_dict(prefix=f"{path}." if path else "", keep_vars=True)
            own = (f"{path}.{name}" if path else name for name, _ in module.named_buffers(recurse=False))
            found |= {name: kept[name] for name in own if name in kept}
    return found


def save(model: torch.nn.Module, file: Path, begin: tuple[str, ...] = ("",)) -> None:
    """Write what `learnt` returns as safetensors: all of it, or what has a name that begins so."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    chosen = {name: tensor for name, tensor in learnt(model).items() if name.startswith(begin)}
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in chosen.items()}, file)


def load(model: torch.nn.Module, file: Path, begin: tuple[str, ...] = ("",)) -> None:
    """Put back what `save` wrote; raises ValueError where names or shapes differ from what trains."""
    import torch
    from safetensors.torch import load_file

    stored = load_file(file)
    chosen = {name: tensor for name, tensor in learnt(model).items() if name.startswith(begin)}
    differing = sorted(
        name
        for name in stored.keys() | chosen.keys()
        if name not in stored or name not in chosen or stored[name].shape != chosen[name].shape
    )
    if differing:
        raise ValueError(f"{file} does not fit what trains: {', '.join(differing[:3])}")
    with torch.no_grad():
        for name, tensor in chosen.items():
            tensor.copy_(stored[name])


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
    begin = heads(model)
    if not [name for name in moved if not name.startswith(begin)]:
        raise NoEffect(technique, "no parameter moved during training", "train for at least one step")
    sizes = {name: elements(parameter) for name, parameter in model.named_parameters()}
    count, total = sum(sizes[name] for name in names), sum(sizes.values())
    return {
        "trainable_parameters": count,
        "total_parameters": total,
        "trainable_share": count / total,
        "trainable_names": patterns(names),
        **({"heads_trained": patterns(n for n in names if n.startswith(begin))} if begin else {}),
        "tensors_moved": len(moved),
        "tensors_unmoved": sorted(names - moved)[:3],
        "frozen_tensors_unchanged": len(after) - len(names),
    }


def patterns(names: Iterable[str], most: int = 4) -> list[str]:
    """Shorten parameter names to their kinds: layer numbers become `*`, and at most `most` are listed."""
    kinds = sorted({re.sub(r"\.\d+\.", ".*.", name.removeprefix("base_model.model.")) for name in names})
    return kinds if len(kinds) <= most else [*kinds[:most], f"and {len(kinds) - most} more"]
