"""Dropout: the usual rival of noisy embeddings."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from paribus.techniques.base import Technique


class Dropout(Technique):
    """Zero each activation with probability `p` while training and scale the rest by 1 / (1 - p).

    `where`: on the input embeddings, or on the output of each attention and feed-forward block before it is
    added to the residual stream. Source: Srivastava et al. 2014, JMLR 15.
    """

    shorthand: ClassVar = "p"
    paper: ClassVar = "Srivastava et al. 2014, JMLR 15"

    p: float = Field(default=0.0, ge=0, lt=1)
    where: Literal["embedding", "hidden"] = "embedding"

    @property
    def label(self) -> str:
        return f"{self.where} {self.p:g}" if self.p else "0"

    def canonical(self) -> dict[str, Any]:
        """Without a probability its place says nothing, so nothing is left."""
        return super().canonical() if self.p else {}
