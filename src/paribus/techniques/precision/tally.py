"""What emulation did and what it cost in accuracy, gathered while a model trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from paribus.techniques.base import OF_THIS_PROCESS
from paribus.techniques.precision.formats import Format, Role, round_to
from paribus.techniques.precision.scaling import History, Rounded, Scaling

MEASURED_EVERY: Final = 16
"""Rounding errors are measured on every 16th optimizer step: on all it would cost a third of the time."""


@dataclass
class Tally:
    """What emulation did: modules converted and left alone, products rounded, and what was lost by role.

    `errors` holds the largest error of a role, `trail` that of each measured step under `step role`, `lost`
    how many numbers saturated, how many were flushed to zero, and how many were measured. `loss_scale`, where
    there is one, takes the place of a recipe's static factor of gradients; `flushed_unscaled` counts those
    flushed if there were none.
    """

    converted: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    products: Counter[str] = field(default_factory=Counter)
    errors: dict[str, torch.Tensor] = field(default_factory=dict)
    trail: dict[str, torch.Tensor] = field(default_factory=dict)
    lost: dict[str, torch.Tensor] = field(default_factory=dict)
    began: int | None = None
    loss_scale: float | None = None
    flushed_unscaled: Any = 0
    histories: dict[str, History] = field(default_factory=dict, metadata=OF_THIS_PROCESS)
    scored: bool = field(default=False, metadata=OF_THIS_PROCESS)

    def count(self, product: str) -> None:
        """Count a product of training; what scoring computes is in no count."""
        if not self.scored:
            self.products[product] += 1

    def measures(self, step: int) -> bool:
        """Say whether errors are measured in a step of training: in the first one, and now and then."""
        if self.scored:
            return False
        if self.began is None:
            self.began = step
        return step == self.began or step % MEASURED_EVERY == 0

    def scaling(self, role: Role, scaling: Scaling) -> Scaling:
        """Return how a role is scaled now: a factor of gradients can change along the way."""
        moving = self.loss_scale is not None and role == "gradients" and not isinstance(scaling, str)
        return self.loss_scale if moving else scaling  # type: ignore[return-value]

    def measure(self, role: Role, step: int, form: Format, exact: torch.Tensor, rounded: Rounded) -> None:
        """Keep the norm of a tensor's rounding error over the tensor's norm, and count what was lost."""
        size = torch.linalg.vector_norm(exact.float()).clamp(min=torch.finfo(torch.float32).tiny)
        error = torch.linalg.vector_norm((rounded.restored() - exact).float()) / size
        for kept, key in ((self.errors, role), (self.trail, f"{step} {role}")):
            kept[key] = torch.maximum(kept.get(key, torch.zeros_like(error)), error)
        scaled = exact if rounded.scale is None else exact / rounded.scale
        beyond = scaled.abs() > form.largest * (1 + (form.relative_step or 1e-3) / 4)
        flushed = (rounded.values == 0) & (exact != 0)
        now = torch.stack([beyond.sum(), flushed.sum(), torch.tensor(exact.numel(), device=exact.device)])
        self.lost[role] = self.lost.get(role, torch.zeros_like(now)) + now
        if self.loss_scale is not None and role == "gradients":
            unscaled = (round_to(exact, form) == 0) & (exact != 0)
            self.flushed_unscaled = self.flushed_unscaled + unscaled.sum()

    def remembered(self) -> dict[str, Any]:
        """Return the histories as tensors and numbers."""
        return {
            key: {"largest": one.largest, "now": one.now, "step": one.step}
            for key, one in self.histories.items()
        }

    def remember(self, state: Mapping[str, Any]) -> None:
        """Go on from such histories."""
        for key, one in state.items():
            found = self.histories[key]
            found.largest, found.now, found.step = list(one["largest"]), one["now"], one["step"]


@contextmanager
def scoring(tally: Tally) -> Iterator[None]:
    """Round in evaluation mode too; nothing is counted, measured or remembered."""
    tally.scored = True
    try:
        yield
    finally:
        tally.scored = False
