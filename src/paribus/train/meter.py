"""Time, memory and tokens of training alone, measured one way for every arm."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from paribus.record.result import Cost

_MEASURED: Final = ("seconds", "steps", "tokens", "_peak", "_at_last_step")


class Meter:
    """A stopwatch that is paused while the model is scored, and the peak of allocated device memory.

    A step's time runs from the end of the step before, data loading included. On a CPU there is no peak: the
    resident size counts libraries too, and says little of a trial.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0
        self.steps: list[float] = []
        self.tokens = 0
        self._peak: int | None = None
        self._since: float | None = None
        self._at_last_step = 0.0

    def start(self) -> None:
        """Let the time run."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Stop the time, once the device has done what it was given; nothing happens where it stands."""
        if self._since is None:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self._peak = max(self._peak or 0, torch.cuda.max_memory_allocated(self.device))
        self.seconds += time.perf_counter() - self._since
        self._since = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is done meanwhile: neither its time nor its memory counts."""
        ran = self._since is not None
        self.stop()
        try:
            yield
        finally:
            if ran:
                self.start()

    def step_done(self, tokens: int) -> None:
        """Note the end of an optimizer step over that many real tokens."""
        now = self.seconds + (time.perf_counter() - self._since if self._since is not None else 0.0)
        self.steps.append(now - self._at_last_step)
        self._at_last_step = now
        self.tokens += tokens

    def state(self) -> dict[str, Any]:
        """Return what was measured so far, for a checkpoint; the stopwatch stands meanwhile."""
        return {name: getattr(self, name) for name in _MEASURED}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on measuring from there, as if the time between had not passed."""
        for name in _MEASURED:
            setattr(self, name, state[name])

    def cost(self, trainable_parameters: int, total_parameters: int) -> Cost | None:
        """Sum up; None where no step was done."""
        if not self.steps:
            return None
        return Cost(
            train_seconds=self.seconds,
            step_seconds_median=statistics.median(self.steps),
            tokens_per_second=self.tokens / self.seconds,
            peak_memory_bytes=self._peak,
            trainable_parameters=trainable_parameters,
            total_parameters=total_parameters,
        )
