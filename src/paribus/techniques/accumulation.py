"""Gradient accumulation: one optimizer step from k micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from paribus.techniques.base import Live, NoEffect, Technique

if TYPE_CHECKING:
    import torch


class Accumulation(Technique):
    """Sum the gradients of `steps` micro-batches before each optimizer step.

    `normalise: tokens` divides the summed token losses of the whole step by its number of target tokens, so
    that any split of a batch gives the same gradient.
    """

    shorthand: ClassVar = "steps"

    steps: int = Field(1, ge=1)
    normalise: Literal["tokens"] = "tokens"

    @property
    def label(self) -> str:
        return str(self.steps)

    def canonical(self) -> dict[str, Any]:
        """With a single micro-batch the normalisation says nothing, so it is left out."""
        return {"steps": 1} if self.steps == 1 else super().canonical()

    def trainer_arguments(self) -> dict[str, Any]:
        return {"gradient_accumulation_steps": self.steps}

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return how many optimizer steps were made of how many micro-batches, as the trainer counted."""
        seen = {str(count): steps for count, steps in sorted(live.micro_batches.items())}
        if live.micro_batches and max(live.micro_batches) < self.steps:
            raise NoEffect(
                "accumulation",
                f"no optimizer step was made of {self.steps} micro-batches; an epoch has at most "
                f"{max(live.micro_batches)} of them",
                "use more training examples or a smaller effective batch",
            )
        return {"optimizer_steps_by_micro_batches": seen, "normalised_by": self.normalise}
