"""NEFTune: uniform noise on the input embeddings while training."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from paribus.techniques.base import Technique


class Noise(Technique):
    """Add uniform noise of magnitude alpha / sqrt(L * d) to the embeddings of each training example.

    L is the example's number of real tokens, d the hidden size (`scaling: paper`). Source: Jain et al. 2023,
    "NEFTune: Noisy Embeddings Improve Instruction Finetuning", arXiv:2310.05914, algorithm 1.
    """

    shorthand: ClassVar = "alpha"
    paper: ClassVar = "Jain et al. 2023, arXiv:2310.05914"

    alpha: float = Field(0.0, ge=0)
    scaling: Literal["paper"] = "paper"
    schedule: Literal["constant"] = "constant"

    @property
    def label(self) -> str:
        return f"{self.alpha:g}"

    def canonical(self) -> dict[str, Any]:
        """Without noise its scaling and schedule say nothing, so nothing is left."""
        return super().canonical() if self.alpha else {}
