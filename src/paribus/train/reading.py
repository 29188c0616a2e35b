"""Reading a model along its training: when, and in which state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

Moment = Literal["start", "step", "epoch", "end"]


@dataclass
class Reader:
    """Who reads the model along the way: `score` gets the optimizer steps and epochs done.

    It reads at the start, after each epoch or every so many optimizer steps, and at the end.
    """

    every: Literal["epoch"] | int
    score: Callable[[int, float], None]
    read_at: int = -1

    def due(self, moment: Moment, step: int) -> bool:
        """Say whether to read now; nothing is read twice at one step."""
        wanted = moment in ("start", "end") or (
            moment == "epoch" if self.every == "epoch" else moment == "step" and step % self.every == 0
        )
        return wanted and step != self.read_at


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode without the autocast that training may have wrapped around it."""
    training, wrapped = model.training, vars(model).get("forward")
    original = vars(model).get("_original_forward")
    model.eval()
    if original is not None:
        model.forward = original
    try:
        yield
    finally:
        model.train(training)
        if original is not None:
            model.forward = wrapped  # type: ignore[assignment]
