"""Micro-batches without padding: the examples laid end to end in one row, each seeing itself alone.

Transformers reads from positions that start again where an example ends, and masks attention between them
(`masking_utils.find_packed_sequence_indices`), but only where a model gives its positions to the mask, takes
no mask and keeps no cache. Elsewhere tokens would silently see the examples before them, so it is tried out
on the model itself before training.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import torch

from paribus.techniques import NoEffect
from paribus.train.data import NO_TARGET, Encoded
from paribus.train.reading import evaluating

TOLERANCE: Final = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Largest relative difference of logits that is rounding; 5e-2 for narrower weights."""
_WAY_OUT: Final = "set training.padding_free: false"


def flattened(rows: Sequence[Encoded]) -> dict[str, torch.Tensor]:
    """Lay rows end to end: `input_ids`, `position_ids` and `labels`, each 1 x tokens, and no mask.

    The first token of an example has nothing before it and is no target.
    """
    return {
        "input_ids": _row(row.input_ids for row in rows),
        "position_ids": _row(range(len(row.input_ids)) for row in rows),
        "labels": _row((NO_TARGET, *row.labels[1:]) for row in rows),
    }


def _row(parts: Any) -> torch.Tensor:
    return torch.tensor([list(chain.from_iterable(parts))], dtype=torch.long)


def check_separate(model: Any, rows: Sequence[Encoded]) -> float:
    """Return by how much an example's logits differ when another lies before it, relative to their norm.

    Raises NoEffect where that is more than rounding: such a model would learn from the examples around.
    """
    base = getattr(model, "get_base_model", lambda: model)()
    if "position_ids" not in inspect.signature(base.forward).parameters:
        raise NoEffect("padding_free", f"{type(base).__name__} takes no positions", _WAY_OUT)
    pair = sorted(rows, key=lambda row: len(row.input_ids))[-2:]
    length, device = len(pair[-1].input_ids), next(model.parameters()).device
    with evaluating(model), torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Position ids are not supported")  # told below
        alone, together = (
            model(**{k: v.to(device) for k, v in flattened(some).items() if k != "labels"}).logits
            for some in (pair[-1:], pair)
        )
    difference = _relative(together[:, -length:], alone[:, -length:])
    if difference > TOLERANCE.get(alone.dtype, 5e-2):
        reason = (
            f"{type(base).__name__} as it is tuned here does not keep examples in one row apart: the logits "
            f"of one change by {difference:.1%} when another lies before it"
        )
        raise NoEffect("padding_free", reason, _WAY_OUT)
    return difference


def _relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())
