"""The largest micro-batch that fits: found by training on the longest examples, which leaves no trace."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import SequentialSampler

from paribus.plan.trial import Training
from paribus.techniques import Live
from paribus.train.data import Encoded
from paribus.train.memory import give_back, out_of_memory
from paribus.train.moments import Moments
from paribus.train.trainer import AblationTrainer

STEPS: Final = 2
"""Optimizer steps of a try: the first makes the optimizer's state, the second trains beside it."""

Attempt = Callable[[type[AblationTrainer], Sequence[Encoded], Training, int], None]
"""Trains with a class of trainer on rows, under training settings, with a number of micro-batches a step."""


def micro_batches(
    model: torch.nn.Module,
    rows: Sequence[Encoded],
    training: Training,
    live: Live,
    attempt: Attempt,
    trainer_class: type[AblationTrainer],
    folder: Path,
) -> int:
    """Return into how many micro-batches a batch must be split to fit, and keep what was tried in `live`.

    The size of a micro-batch is halved, to the next divisor of the effective batch, until one fits; then
    the divisors between that one and the last that did not fit are tried. `folder` holds the weights
    meanwhile. Raises the error of exhausted memory where not even one example fits.
    """
    attempts: list[dict[str, Any]] = []
    trying = _trying(trainer_class)

    def fits(size: int) -> bool:
        with untouched(model, live, folder):
            asked = _try(size, rows, training, partial(attempt, trying))
        attempts.append({"size": size, "fitted": asked is None, **(asked or {})})
        return asked is None

    size = largest(training.effective_batch_size, fits)
    steps = training.effective_batch_size // size
    live.observed["micro_batch"] = {"micro_batch": size, "steps": steps, "attempts": attempts}
    return steps


def largest(whole: int, fits: Callable[[int], bool]) -> int:
    """Return the largest divisor of a whole that fits; 1 is returned or raises, as `fits(1)` must."""
    divisors = [size for size in range(whole, 0, -1) if whole % size == 0]
    size, failed = whole, whole + 1
    while not fits(size):
        size, failed = next(d for d in divisors if d <= max(1, size // 2)), size
    between = (d for d in divisors if size < d < failed)
    return next((d for d in between if fits(d)), size)


def _try(size: int, rows: Sequence[Encoded], training: Training, attempt: Callable[..., None]) -> Any:
    """Train two steps of up to two micro-batches of the longest rows; None if they fit, else what was asked.

    With two micro-batches a step, the second is computed beside the gradients of the first.
    """
    longest = sorted(rows, key=lambda row: (len(row.input_ids), row.targets), reverse=True)[:size]
    splits = min(2, training.effective_batch_size // size)
    trial = {"effective_batch_size": splits * len(longest), "max_steps": STEPS, "epochs": None}
    try:
        small = training.model_copy(update={**trial, "learning_rate": 0.0})
        attempt(longest * splits * STEPS, small, splits)
    except (MemoryError, RuntimeError) as error:
        full = out_of_memory(error, "training")
        if full is None or size == 1:
            raise
        return {"requested_bytes": full.requested_bytes}
    return None


def _trying(trainer_class: type[AblationTrainer]) -> type[AblationTrainer]:
    """Return a trainer that takes rows as they come and has no technique act after a step."""

    class Trying(trainer_class):  # type: ignore[valid-type, misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.remove_callback(Moments)

        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return SequentialSampler(self.rows)  # type: ignore[arg-type]

    return Trying


@contextmanager
def untouched(model: torch.nn.Module, live: Live, folder: Path) -> Iterator[None]:
    """Put back, bit for bit and however it ends, whatever training changes.

    Weights that train and buffers wait in a file, so that they take no memory of what is tried; gradients,
    training modes, global random states and `live` are put back too.
    """
    kept = [p for p in model.parameters() if p.requires_grad] + list(model.buffers())
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    before, file = _Before(model, live), folder / "untouched.pt"
    folder.mkdir(parents=True, exist_ok=True)
    torch.save([tensor.detach() for tensor in kept], file)
    try:
        with random_states():
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, mode in modes:
            module.training = mode
        before.put_back(live)
        give_back()
        with torch.no_grad():
            for tensor, value in zip(kept, torch.load(file, map_location="cpu"), strict=True):
                tensor.copy_(value)
        file.unlink()


@contextmanager
def random_states() -> Iterator[None]:
    """Put the global random states of Python, numpy and torch back afterwards."""
    python, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)


class _Before:
    """What `live` said before; its values are put back into the objects that hold them now."""

    def __init__(self, model: torch.nn.Module, live: Live) -> None:
        shared = (live, *model.modules(), *model.parameters(), *model.buffers())
        memo = {id(one): one for one in shared}
        self.values = {field.name: copy.deepcopy(getattr(live, field.name), memo) for field in fields(live)}

    def put_back(self, live: Live) -> None:
        for name, value in self.values.items():
            setattr(live, name, _restored(getattr(live, name), value))


def _restored(now: Any, before: Any) -> Any:
    """Return an object of now with the contents it had before, so that who holds it sees them."""
    if type(now) is not type(before) or isinstance(now, torch.Tensor | torch.nn.Module):
        return before
    if isinstance(now, dict):
        items = {key: _restored(now[key], value) if key in now else value for key, value in before.items()}
        now.clear()
        dict.update(now, items)
    elif isinstance(now, list):
        now[:] = before
    elif isinstance(now, set):
        now.clear()
        now.update(before)
    elif is_dataclass(now) or hasattr(now, "__dict__"):
        names = [field.name for field in fields(now)] if is_dataclass(now) else list(vars(before))  # type: ignore[arg-type]
        for name in names:
            object.__setattr__(now, name, _restored(getattr(now, name, None), getattr(before, name)))
    else:
        return before
    return now
