"""Claims that accumulated gradients are the whole batch's, computed on a softmax over tokens in fp64."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paribus.compare.recompute import Computed, Statement, computed
from paribus.techniques.accumulation import Accumulation
from paribus.techniques.base import Live

if TYPE_CHECKING:
    import torch

UNEVEN = (6, 1, 3, 2, 5, 1, 4, 2)
EVEN = (3,) * 8
FOUR_OF_TWO = ((0, 1), (2, 3), (4, 5), (6, 7))


Example = tuple["torch.Tensor", "torch.Tensor"]
"""A row of inputs for each target, and the targets."""


def drawn(targets: Sequence[int], dtype: str = "float64") -> list[Example]:
    """Draw examples of so many targets each, of six classes and width 8."""
    import torch

    draw = random.Random(0)
    width, classes, precision = 8, 6, getattr(torch, dtype)
    return [
        (
            torch.tensor([[draw.gauss(0, 1) for _ in range(width)] for _ in range(count)], dtype=precision),
            torch.tensor([draw.randrange(classes) for _ in range(count)]),
        )
        for count in targets
    ]


def zero_model(dtype: str = "float64") -> torch.nn.Linear:
    """Return a softmax regression whose weights are zero."""
    import torch

    model = torch.nn.Linear(8, 6, bias=False, dtype=getattr(torch, dtype))
    torch.nn.init.zeros_(model.weight)
    return model


def accumulate(
    model: torch.nn.Module, examples: Sequence[Example], split: Sequence[Sequence[int]], rule: Accumulation
) -> float:
    """Add the gradient of one step in its micro-batches; return the step's mean loss over targets."""
    import torch
    from torch.nn.functional import cross_entropy

    everything = sum(len(labels) for _, labels in examples)
    live, total = Live(seed=0, step_targets=everything, window=len(split)), 0.0
    with rule.applied(model, live):  # type: ignore[arg-type]
        for rows in split:
            inputs, labels = (torch.cat([examples[row][part] for row in rows]) for part in (0, 1))
            live.targets = len(labels)
            summed = cross_entropy(model(inputs), labels, reduction="sum")
            (summed / (rule.divisor(live) or everything)).backward()
            total += summed.item()
    return total / everything


def gradient(
    targets: Sequence[int], split: Sequence[Sequence[int]], accumulation: Accumulation
) -> torch.Tensor:
    """Return the gradient of a step on eight examples of some targets each, taken in micro-batches."""
    model = zero_model()
    accumulate(model, drawn(targets), split, accumulation)
    assert model.weight.grad is not None
    return model.weight.grad


def difference(targets: Sequence[int], accumulation: Accumulation) -> float:
    """Return how far the gradient of four micro-batches is from that of the whole batch, relative."""
    whole = gradient(targets, [range(8)], Accumulation(steps=1))
    parts = gradient(targets, FOUR_OF_TWO, accumulation)
    return ((parts - whole).norm() / whole.norm()).item()


def _means() -> dict[str, float]:
    """Follow the article: the mean of the micro-batches' mean losses, on even and uneven examples."""
    mean = Accumulation(steps=4, normalise="micro_batches")
    return {"even": difference(EVEN, mean), "uneven": difference(UNEVEN, mean)}


def _judged(even_says: str, uneven_says: str) -> Computed:
    found, by_tokens = _means(), difference(UNEVEN, Accumulation(steps=4))
    shown = {f"relative difference of the gradient, {name} targets": value for name, value in found.items()}
    return computed(
        shown | {"divided by the step's targets": round(by_tokens, 9)},
        Statement(says=even_says, holds=found["even"] < 1e-12),
        Statement(
            says=uneven_says,
            holds=found["uneven"] < 1e-12,
            found=f"the gradient is {found['uneven']:.0%} off here; divided by the step's targets, exact",
        ),
    )


def a82() -> Computed:
    """Ask whether the article's own rule is equal in theory, whatever its four examples of causes."""
    return _judged(
        "with as many targets in each micro-batch, accumulation is equal",
        "without batch norm, schedule and noise, which it names, it is equal",
    )


def a86() -> Computed:
    """Ask whether the mean of the micro-batches' gradients is that of the whole batch."""
    return _judged(
        "the mean over micro-batches of as many targets is the batch's gradient",
        "the mean over micro-batches of any size is the batch's gradient",
    )


def a89() -> Computed:
    """Ask whether accumulation as listed is fully equivalent."""
    return _judged(
        "it is equivalent where each micro-batch has as many targets",
        "it is equivalent where micro-batches have different numbers of targets",
    )


ROWS = {"A82": a82, "A86": a86, "A89": a89}
