"""What a training has gathered besides weights, optimizer and random states: taken, and put back."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors import safe_open

from paribus.techniques.tuning import weights
from paribus.train import packed

if TYPE_CHECKING:
    from paribus.train.trainer import AblationTrainer

WEIGHTS: Final = "weights.safetensors"


def buffer_digests(model: torch.nn.Module) -> dict[str, str]:
    """Hash every buffer, so that those which training changes are known."""
    return {
        name: hashlib.sha256(weights.content(buffer)).hexdigest() for name, buffer in model.named_buffers()
    }


def taken(trainer: AblationTrainer) -> dict[str, Any]:
    """Return the state of a trainer after an optimizer step, for `packed.write`."""
    model, live = trainer.trained, trainer.live
    now = buffer_digests(model)
    changed = {name: b for name, b in model.named_buffers() if now[name] != trainer.buffers.get(name)}
    assert trainer.checkpoints is not None
    return {
        "curve": trainer.curve,
        "counts": {name: getattr(trainer, name) for name in COUNTS},
        "resumed_at": trainer.resumed_at,
        "micro_batches": live.micro_batches,
        "observed": {
            name: found for name, one in live.observed.items() if (found := packed.sums(one)) is not None
        },
        "techniques": [one.state(model, live) for one in trainer.techniques],
        "read_at": [reader.read_at for reader in trainer.readers],
        "meter": trainer.meter.state(),
        "buffers": changed,
        "parts": {name: part.state() for name, part in trainer.checkpoints.parts.items()},
    }


COUNTS: Final = ("skipped_steps", "examples", "truncated_examples", "padding_tokens")
"""The trainer's counters."""


def put_back(trainer: AblationTrainer, state: dict[str, Any], step: int) -> None:
    """Have a fresh trainer go on from what `taken` returned at that step."""
    model, live = trainer.trained, trainer.live
    trainer.curve[:] = state["curve"]
    for name in COUNTS:
        setattr(trainer, name, state["counts"][name])
    trainer.resumed_at = [*state["resumed_at"], step]
    live.micro_batches.clear()
    live.micro_batches.update(state["micro_batches"])
    for name, found in state["observed"].items():
        packed.put_back(live.observed[name], found, trainer.args.device)
    for technique, its in zip(trainer.techniques, state["techniques"], strict=True):
        technique.restore(model, live, its)
    for reader, read_at in zip(trainer.readers, state["read_at"], strict=True):
        reader.read_at = read_at
    trainer.meter.restore(state["meter"])
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in state["buffers"].items():
            buffers[name].copy_(value)
    assert trainer.checkpoints is not None
    for name, part in trainer.checkpoints.parts.items():
        part.restore(state["parts"][name])


def unfit(model: torch.nn.Module, folder: Path) -> str | None:
    """Say which parameter or buffer of a checkpoint does not fit a model, or None."""
    wanted = {name: list(learnt.shape) for name, learnt in weights.learnt(model).items()}
    with safe_open(folder / WEIGHTS, "pt") as file:
        found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    buffers = {name: b.shape for name, b in model.named_buffers()}
    changed = packed.read(folder)["buffers"]
    differing = [name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)]
    differing += [name for name, value in changed.items() if buffers.get(name) != value.shape]
    return f"{min(differing)} is not what it was" if differing else None
