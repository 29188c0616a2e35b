"""The scale of fp16's gradients: fixed, none, or found by raising it until they overflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

    from paribus.techniques.precision.tally import Tally

FIRST: Final = 65536.0
"""Where a dynamic scale starts, as in `torch.amp.GradScaler`."""
GROWTH: Final = 2.0
BACKOFF: Final = 0.5
INTERVAL: Final = 2000
"""After so many steps in a row without an overflow a dynamic scale is doubled, as in `GradScaler`."""


@dataclass
class LossScale:
    """The scale of now, and how it came there: doubled by `growth_interval` steps without an overflow.

    Without an interval it stays. `good` counts the steps since the last change, `grown` the doublings, and
    `worst` is the largest share of a step's gradients of weights that were not finite.
    """

    scale: float
    growth_interval: int | None = None
    good: int = 0
    skipped: int = 0
    grown: int = 0
    worst: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def __post_init__(self) -> None:
        self.least = self.most = self.scale

    def step(self, model: torch.nn.Module) -> bool:
        """Look at the gradients of an optimizer step and set the scale of the next; False: one overflowed."""
        import torch

        if self.growth_interval is None:
            return True
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        finite = int(torch.stack([gradient.isfinite().sum() for gradient in gradients]).sum())
        total = sum(gradient.numel() for gradient in gradients)
        self.worst = max(self.worst, 1 - finite / total)
        return self._update(finite == total)

    def _update(self, finite: bool) -> bool:
        """Halve the scale after an overflow; double it after enough steps without one."""
        self.good = self.good + 1 if finite else 0
        self.skipped += not finite
        if not finite:
            self.scale *= BACKOFF
        elif self.good == self.growth_interval:
            self.scale, self.good, self.grown = self.scale * GROWTH, 0, self.grown + 1
        self.least, self.most = min(self.least, self.scale), max(self.most, self.scale)
        return finite

    def evidence(self, tally: Tally) -> dict[str, Any]:
        """Return where the scale stands and was, the steps it left out, and what it did to gradients.

        Shares are of the numbers that emulation measured, on every 16th step.
        """
        beyond, flushed, total = (int(count) for count in tally.lost["gradients"])
        lost = {
            "overflowed": beyond,
            "flushed_to_zero": flushed,
            "flushed_without_scale": int(tally.flushed_unscaled),
        }
        return {
            "kind": "static" if self.growth_interval is None else "dynamic",
            "at_the_end": self.scale,
            "least": self.least,
            "most": self.most,
            "times_doubled": self.grown,
            "skipped_steps": self.skipped,
            "share_not_finite_at_worst": float(f"{self.worst:.3g}"),
            **{f"share_{what}": float(f"{count / max(total, 1):.3g}") for what, count in lost.items()},
        }
