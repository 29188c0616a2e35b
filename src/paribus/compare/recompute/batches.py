"""Claims on batches: means of gradients and the article's worked example of a linear classifier."""

from __future__ import annotations

from paribus.compare.recompute import Computed, computed

VECTORS = ((2.5, -1.3, 0.8), (-0.5, 1.8, -1.2), (1.2, 0.3, 0.9))


def a08() -> Computed:
    """Average the three gradient vectors of the article."""
    mean = [sum(column) / len(VECTORS) for column in zip(*VECTORS, strict=True)]
    return computed({f"mean[{i}]": value for i, value in enumerate(mean)})


ROWS = {"A08": a08}
