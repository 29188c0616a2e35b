"""Random numbers keyed by role, epoch and example: the same whatever the split, the padding or the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paribus.techniques.base import Live

if TYPE_CHECKING:
    import torch


def places(
    live: Live, activations: torch.Tensor, virtual: int = 0
) -> Iterator[tuple[str, tuple[int, slice], int]]:
    """Yield each example of the micro-batch: its id, where its tokens stand in [rows, length, d], and L.

    Rows are padded on the right, and padding belongs to no example; `virtual` tokens, which a prompt method
    puts in front of each row, belong to the row's example. A single row that is as long as all examples
    together holds them end to end: then an example is a segment of it.
    """
    rows, length = activations.shape[:2]
    if rows == 1 and length == sum(live.lengths) and not virtual:
        start = 0
        for example_id, own in zip(live.example_ids, live.lengths, strict=True):
            yield example_id, (0, slice(start, start + own)), own
            start += own
        return
    if rows != len(live.example_ids):
        raise RuntimeError(f"draws for {len(live.example_ids)} examples met a batch of {rows} rows")
    for row, (example_id, own) in enumerate(zip(live.example_ids, live.lengths, strict=True)):
        yield example_id, (row, slice(0, virtual + own)), virtual + own


def dropped(activations: torch.Tensor, live: Live, p: float, *keys: object, virtual: int = 0) -> torch.Tensor:
    """Return activations [rows, length, d] of which each is zero with probability p, the rest over 1 - p.

    `keys` name the place in the model. Each example draws for itself, on the CPU in fp32. Activations may
    also come as [rows * length, d], as some models pass them on.
    """
    import torch

    whole = _by_row(activations, live)
    kept = torch.ones(whole.shape, dtype=whole.dtype)
    for example_id, place, length in places(live, whole, virtual):
        generator = torch.Generator().manual_seed(live.draw_seed("dropout", live.epoch, example_id, *keys))
        unit = torch.rand(length, whole.shape[-1], generator=generator)
        kept[place] = (unit >= p).to(kept.dtype) / (1 - p)
    return activations * kept.view(activations.shape).to(activations.device)


def _by_row(activations: torch.Tensor, live: Live) -> torch.Tensor:
    """Give activations without a dimension for the rows of the batch that dimension back."""
    if activations.dim() > 2:
        return activations
    packed = activations.shape[0] == sum(live.lengths)
    return activations.reshape(1 if packed else len(live.lengths), -1, activations.shape[-1])
