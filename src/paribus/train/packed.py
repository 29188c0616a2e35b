"""State as two files without pickle: numbers and words as JSON, tensors as safetensors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from paribus.techniques.base import OF_THIS_PROCESS

PLAIN: Final = "state.json"
TENSORS: Final = "state.safetensors"


def write(tree: Any, folder: Path) -> None:
    """Write mappings, lists, numbers, words and tensors; a float comes back to its last bit.

    Raises TypeError, naming the place, for a value of another kind.
    """
    tensors: dict[str, torch.Tensor] = {}
    plain = _packed(tree, "state", tensors)
    (folder / PLAIN).write_text(json.dumps(plain), encoding="utf-8")
    save_file(tensors, folder / TENSORS)


def read(folder: Path) -> Any:
    """Read back what `write` wrote; tensors come on the CPU, tuples as lists."""
    tensors = load_file(folder / TENSORS)
    return _unpacked(json.loads((folder / PLAIN).read_text(encoding="utf-8")), tensors)


def _packed(value: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_packed(item, f"{place}[{index}]", tensors) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        pairs = [[key, _packed(item, f"{place}.{key}", tensors)] for key, item in value.items()]
        return {"mapping": pairs}
    if isinstance(value, torch.Tensor):
        tensors[place] = value.detach().cpu().clone().contiguous()
        return {"tensor": place}
    raise TypeError(f"{place} is a {type(value).__name__}, and a checkpoint holds numbers, words and tensors")


def _unpacked(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, tensors) for item in value]
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: _unpacked(item, tensors) for key, item in value["mapping"]}
    return value


def sums(gathered: Any) -> dict[str, Any] | None:
    """Return a dataclass's fields that outlive a process, or a Counter's counts; None for anything else."""
    if isinstance(gathered, Counter):
        return dict(gathered)
    if is_dataclass(gathered):
        kept = [
            field.name for field in fields(gathered) if not OF_THIS_PROCESS.items() <= field.metadata.items()
        ]
        return {name: getattr(gathered, name) for name in kept}
    return None


def put_back(gathered: Any, state: Mapping[str, Any], device: torch.device) -> None:
    """Set what `sums` returned on an object of the same kind; tensors go to the device."""
    if isinstance(gathered, Counter):
        gathered.clear()
        gathered.update(state)
        return
    for name, value in state.items():
        setattr(gathered, name, _like(getattr(gathered, name), value, device))


def _like(now: Any, value: Any, device: torch.device) -> Any:
    """Give a value the kind of what stands in its place: JSON has one list and one mapping."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return type(now)({key: _like(None, item, device) for key, item in value.items()})
    if isinstance(value, list):
        return type(now)(_like(None, item, device) for item in value)
    return value
