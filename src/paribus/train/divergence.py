"""When a training is no longer worth going on with, and the norm its curve shows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import torch

from paribus.record.result import Diverged

LARGEST: Final = torch.finfo(torch.float32).max


@torch.no_grad()
def norm(tensors: Iterable[torch.Tensor]) -> float:
    """Return the Euclidean norm of all tensors' values together, summed in fp32 at least."""
    norms = [torch.linalg.vector_norm(t, dtype=torch.promote_types(t.dtype, torch.float32)) for t in tensors]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def divergence(step: int, **quantities: float | None) -> Diverged | None:
    """Return the first quantity that is not finite; None stands for one that was not measured."""
    for quantity, value in quantities.items():
        if value is not None and not math.isfinite(value):
            word: Any = str(float(value))
            return Diverged(step=step, quantity=quantity, value=word, bound=LARGEST)
    return None
