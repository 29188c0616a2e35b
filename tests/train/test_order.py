"""The order of examples is an explicit list that depends on seed, epoch and ids alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import tiny
from paribus.techniques import Accumulation, Full, Live, Lora, Noise
from paribus.train.order import Order, epoch_order

IDS = [f"example {index}" for index in range(50)]


@given(st.integers(0, 2**32), st.integers(0, 100))
def test_an_order_is_a_permutation(seed: int, epoch: int) -> None:
    assert sorted(epoch_order(seed, epoch, IDS)) == list(range(50))


def test_a_known_order_never_changes() -> None:
    """Results recorded in this order are compared with later ones."""
    assert epoch_order(0, 0, IDS[:8]) == [1, 5, 7, 0, 3, 6, 2, 4]


def test_epochs_and_seeds_differ() -> None:
    assert epoch_order(0, 0, IDS) != epoch_order(0, 1, IDS) != epoch_order(1, 1, IDS)


def test_the_place_of_an_example_in_its_file_does_not_matter() -> None:
    backwards = IDS[::-1]
    assert [IDS[i] for i in epoch_order(3, 2, IDS)] == [backwards[i] for i in epoch_order(3, 2, backwards)]


def test_its_hash_tells_epochs_apart() -> None:
    live = Live(seed=0)
    order = Order(live, IDS)
    assert list(order) == epoch_order(0, 0, IDS)
    first = order.sha256
    live.epoch = 1
    assert list(order) == epoch_order(0, 1, IDS)
    assert order.sha256 != first
    assert len(order) == 50


def test_it_is_the_same_for_every_arm_of_a_seed() -> None:
    arms = [(Full(),), (Full(), Accumulation(steps=4)), (Lora(r=4), Noise(alpha=5))]
    hashes = {tiny.run(tiny.llama(), *arm, epochs=2).trained.order_sha256 for arm in arms}
    live = Live(seed=0)
    expected = Order(live, [row.example_id for row in tiny.rows()])
    for live.epoch in range(2):
        list(expected)
    assert hashes == {expected.sha256}
