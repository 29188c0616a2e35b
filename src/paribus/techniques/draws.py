"""Random numbers keyed by role, epoch and example: the same whatever the split, the padding or the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paribus.techniques.base import Live

if TYPE_CHECKING:
    import torch


def places(live: Live, activations: torch.Tensor) -> Iterator[tuple[str, tuple[int, slice], int]]:
    """Yield each example of the micro-batch: its id, where its tokens stand in [rows, length, d], and L.

    Rows are padded on the right, and padding belongs to no example.
    """
    rows = activations.shape[0]
    if rows != len(live.example_ids):
        raise RuntimeError(f"draws for {len(live.example_ids)} examples met a batch of {rows} rows")
    for row, (example_id, length) in enumerate(zip(live.example_ids, live.lengths, strict=True)):
        yield example_id, (row, slice(0, length)), length


def dropped(activations: torch.Tensor, live: Live, p: float, *keys: object) -> torch.Tensor:
    """Return activations [rows, length, d] of which each is zero with probability p, the rest over 1 - p.

    `keys` name the place in the model. Each example draws for itself, on the CPU in fp32.
    """
    import torch

    kept = torch.ones(activations.shape, dtype=activations.dtype)
    for example_id, place, length in places(live, activations):
        generator = torch.Generator().manual_seed(live.draw_seed("dropout", live.epoch, example_id, *keys))
        unit = torch.rand(length, activations.shape[-1], generator=generator)
        kept[place] = (unit >= p).to(kept.dtype) / (1 - p)
    return activations * kept.to(activations.device)
