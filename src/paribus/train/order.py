"""The order in which examples are seen: an explicit list for each epoch, the same for every arm of a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from torch.utils.data import Sampler

from paribus.techniques import Live, sub_seed


def epoch_order(seed: int, epoch: int, example_ids: Sequence[str]) -> list[int]:
    """List the positions of the examples in the order of one epoch (counted from 0).

    Examples are sorted by the sub-seed of their id, so an order depends on no library's random numbers and
    on neither the batch split nor the place of an example in its file.
    """
    keys = [sub_seed(seed, "order", epoch, example_id) for example_id in example_ids]
    return sorted(range(len(example_ids)), key=keys.__getitem__)


class Order(Sampler[int]):
    """Gives the data loader each epoch's order, at `live.epoch`, and keeps a hash of all that it gave."""

    def __init__(self, live: Live, example_ids: Sequence[str]) -> None:
        self.live, self.example_ids = live, example_ids
        self._given = hashlib.sha256()

    def __iter__(self) -> Iterator[int]:
        return iter(self._give(self.live.epoch))

    def _give(self, epoch: int) -> list[int]:
        order = epoch_order(self.live.seed, epoch, self.example_ids)
        lines = [str(epoch), *(self.example_ids[index] for index in order), ""]
        self._given.update("\n".join(lines).encode())
        return order

    def pass_over(self, epochs: int) -> None:
        """Count the first epochs as given: a resumed run begins after them."""
        for epoch in range(epochs):
            self._give(epoch)

    def __len__(self) -> int:
        return len(self.example_ids)

    @property
    def sha256(self) -> str:
        """Hash the ids of the examples in the order in which every epoch so far began to see them."""
        return self._given.hexdigest()
