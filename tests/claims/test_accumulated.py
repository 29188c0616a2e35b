"""Claims that accumulation equals the whole batch, in summaries; the id of each is in the name."""

from __future__ import annotations

import pytest
import torch

import tiny
from judging import judged, numbers
from paribus.compare.recompute.accumulated import EVEN, FOUR_OF_TWO, UNEVEN, difference, drawn, gradient
from paribus.techniques import Accumulation, Full


def by_hand(targets: tuple[int, ...], weights: list[float]) -> torch.Tensor:
    """Return a weighted sum of gradients at zero weights: each class is a sixth, less the target."""
    total = torch.zeros(6, 8, dtype=torch.float64)
    for (inputs, labels), weight in zip(drawn(targets), weights, strict=True):
        error = torch.full((len(labels), 6), 1 / 6, dtype=torch.float64)
        error[range(len(labels)), labels] -= 1
        total += weight * error.T @ inputs
    return total


def test_a86_gradients_are_those_of_the_closed_form() -> None:
    """A target of a batch counts 1 / 24; in the mean of means 1 / (4 n), n those of its micro-batch."""
    whole = gradient(UNEVEN, [range(8)], Accumulation(steps=1))
    assert torch.allclose(whole, by_hand(UNEVEN, [1 / sum(UNEVEN)] * 8), rtol=0, atol=1e-14)
    own = [1 / (4 * sum(UNEVEN[row] for row in pair)) for pair in FOUR_OF_TWO for _ in pair]
    means = gradient(UNEVEN, FOUR_OF_TWO, Accumulation(steps=4, normalise="micro_batches"))
    assert torch.allclose(means, by_hand(UNEVEN, own), rtol=0, atol=1e-14)


@pytest.mark.parametrize("claim", ["A82", "A86", "A89"])
def test_a82_a86_a89_equal_counts_are_exact_and_unequal_ones_are_not(claim: str) -> None:
    found = numbers(claim)
    assert found["relative difference of the gradient, even targets"] < 1e-12
    assert found["relative difference of the gradient, uneven targets"] > 0.1
    assert found["divided by the step's targets"] < 1e-12
    assert judged(claim).verdict == "contradicted"


def test_a89_dividing_by_all_targets_is_exact_on_any_counts() -> None:
    for targets in (EVEN, UNEVEN):
        assert difference(targets, Accumulation(steps=4)) < 1e-12


def test_a75_eight_micro_batches_of_four_make_a_step_of_32_in_training() -> None:
    run = tiny.run(
        tiny.llama(),
        Full(),
        Accumulation(steps=8),
        effective_batch_size=32,
        examples=tiny.rows(64),
        max_steps=2,
    )
    assert run.trained.resolved["micro_batch"] == 4
    assert run.trained.counts.examples == 2 * 32
