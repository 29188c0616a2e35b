"""Claims on accumulation: what its loops sum and step, its steps and schedule, and Adam."""

from __future__ import annotations

from collections.abc import Sequence

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.recompute.accumulated import (
    EVEN,
    FOUR_OF_TWO,
    UNEVEN,
    accumulate,
    difference,
    drawn,
    zero_model,
)
from paribus.compare.recompute.article_memory import BATCH, MICRO, whole_and_accumulated
from paribus.compare.recompute.batch_statistics import apart_by_norm
from paribus.compare.recompute.batches import refused
from paribus.techniques.accumulation import Accumulation

WHOLE = Accumulation(steps=1)
MEAN_OF_MEANS = Accumulation(steps=4, normalise="micro_batches")


def a27() -> Computed:
    """Set the accumulated, scaled gradient beside the whole batch's, with equal and unequal target counts."""
    even, uneven = (difference(targets, MEAN_OF_MEANS) for targets in (EVEN, UNEVEN))
    return computed(
        {"relative_error.equal": even, "relative_error.unequal": uneven}, *_gradients(even, uneven)
    )


def _gradients(even: float, uneven: float) -> tuple[Statement, Statement]:
    return (
        Statement(
            says="with as many targets in each micro-batch the gradient is the whole batch's",
            holds=even < 1e-12,
            found="up to rounding in fp64",
        ),
        Statement(
            says="a language model's gradient, its texts of unequal numbers of targets, is the whole batch's",
            holds=uneven < 1e-12,
            found=f"{uneven:.0%} off where eight texts have 1 to 6 targets; divided by the step's targets "
            "it is exact",
        ),
    )


def a28() -> Computed:
    """Accumulate the gradient of a loss that is 2 and grows by 2, four times, unscaled and scaled."""
    import torch

    def accumulated(divisor: int) -> float:
        weight = torch.ones(1, requires_grad=True)
        for _ in range(4):
            (2.0 * weight / divisor).sum().backward()
        assert weight.grad is not None
        return weight.grad.item()

    return computed(
        {"unscaled": accumulated(1), "scaled_loss": 2.0 / 4, "scaled": accumulated(4), "mean_of_batch": 2.0}
    )


def steps_taken(batches: int, steps: int, epochs: int, *, final: bool) -> list[list[float]]:
    """Run the article's loop and return the weight of each micro-batch in each optimizer step's gradient.

    The loss of micro-batch i is the i-th of as many parameters, so that its gradient says what went into it.
    `final` is whether a step is taken with what is left at the end of an epoch.
    """
    import torch

    weights = torch.zeros(batches, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    taken: list[list[float]] = []

    def take() -> None:
        assert weights.grad is not None
        taken.append(weights.grad.tolist())
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(epochs):
        for index in range(batches):
            (weights[index] / steps).backward()
            if (index + 1) % steps == 0:
                take()
        if final and batches % steps != 0:
            take()
    return taken


def a29() -> Computed:
    """Follow the trainer over ten micro-batches by four and look at its final step."""
    last = steps_taken(10, 4, 1, final=True)[-1]
    left = last[8:]
    return computed(
        {"weight_of_each_in_the_final_step": left[0], "weight_in_their_mean": 1 / 2},
        Statement(
            says="the final step takes every micro-batch that is left and no other",
            holds=all(left) and not any(last[:8]),
        ),
        Statement(
            says="the final step's gradient is the mean of what is left, as every other step's is",
            holds=sum(last) == 1,
            found=f"two that are left count {left[0]:g} each, so that it has {sum(last):g} of its size",
        ),
    )


def a30() -> Computed:
    """Follow the loops without a final step over two epochs of ten micro-batches by four."""
    taken = steps_taken(10, 4, 2, final=False)
    counts = [sum(weight > 0 for weight in step) for step in taken]
    used = sum(sum(step) for step in taken) * 4
    return computed(
        {"micro_batches_in_the_third_step": counts[2], "size_of_the_third_step": sum(taken[2])},
        Statement(
            says="every optimizer step is the mean of four micro-batches of one epoch",
            holds=counts == [4] * len(taken),
            found=f"the second epoch's first step sums {counts[2]}, two of them from the first epoch, and "
            "divides by 4",
        ),
        Statement(
            says="every micro-batch is in a step",
            holds=used == 20,
            found=f"{used:.0f} of 20 are; the last two are neither stepped nor cleared",
        ),
    )


def a31() -> Computed:
    """Compute the table's memory, and compare gradients and curves of the article's rule."""
    even, uneven = (difference(targets, MEAN_OF_MEANS) for targets in (EVEN, UNEVEN))
    whole, accumulated = whole_and_accumulated()
    curves = [_curve(EVEN, MEAN_OF_MEANS), _curve(UNEVEN, MEAN_OF_MEANS)]
    wholes = [_curve(EVEN, WHOLE), _curve(UNEVEN, WHOLE)]
    off = [
        max(abs(a - b) / b for a, b in zip(*pair, strict=True)) for pair in zip(curves, wholes, strict=True)
    ]
    return computed(
        {"memory.whole": (whole, "GB"), "memory.accumulated": (accumulated, "GB")},
        *_gradients(even, uneven),
        Statement(
            says="with as many targets in each micro-batch the curve is the whole batch's",
            holds=off[0] < 1e-12,
            found="up to rounding in fp64",
        ),
        Statement(
            says="with unequal numbers of targets the curve is the whole batch's",
            holds=off[1] < 1e-12,
            found=f"up to {off[1]:.1%} off in 24 steps of Adam",
        ),
        Statement(
            says="layers that normalise over the batch change nothing",
            holds=apart_by_norm("batch") < 1e-12,
            found=f"batch norm's outputs are {apart_by_norm('batch'):.0%} off",
        ),
    )


def a33() -> Computed:
    """Divide the wanted batch by the one that fits."""
    return computed(
        {"steps": BATCH // MICRO},
        Statement(
            says="as many micro-batches of 8 make the wanted batch of 32",
            holds=BATCH // MICRO * MICRO == BATCH,
            found=f"8 divides 32; for a wanted 30 the rule gives {30 // 8} steps, {30 // 8 * 8} samples, "
            f"and for a wanted 4 it gives {4 // 8}, and a loop ends in {refused(lambda: 1 % (4 // 8))}",
        ),
    )


def a39() -> Computed:
    """Count optimizer steps of loops with and without a final step, and run the cosine schedule over them."""
    batches, k, epochs = 10, 4, 2
    planned = batches // k * epochs
    without, with_final = (len(steps_taken(batches, k, epochs, final=final)) for final in (False, True))
    rates = _cosine(planned, with_final)
    return computed(
        {"planned": planned, "steps.without_final": without, "steps.with_final": with_final},
        Statement(
            says="(batches // k) x epochs are the optimizer steps of the loop beside it",
            holds=planned == without,
            found=f"{without} of 10 micro-batches by 4 in two epochs, as it takes no final step",
        ),
        Statement(
            says="(batches // k) x epochs are the optimizer steps of its trainer, which takes a final step",
            holds=planned == with_final,
            found=f"it takes {with_final}: after {planned} the rate is {rates[planned]:g}, and then it rises "
            f"again, to {rates[-1]:g} of its peak",
        ),
    )


def _cosine(planned: int, taken: int) -> list[float]:
    """Return the rate before the first step and after each, where `planned` steps were announced."""
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=planned)
    rates = [1.0]
    for _ in range(taken):
        optimizer.step()
        schedule.step()
        rates.append(float(schedule.get_last_lr()[0]))
    return rates


def _curve(targets: Sequence[int], rule: Accumulation, dtype: str = "float64") -> list[float]:
    """Train for 24 steps of Adam, by micro-batches where there are steps to accumulate."""
    import torch

    model, examples = zero_model(dtype), drawn(targets, dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    split = FOUR_OF_TWO if rule.steps > 1 else [range(len(examples))]
    losses: list[float] = []
    for _ in range(24):
        losses.append(accumulate(model, examples, split, rule))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _difference(targets: Sequence[int], rule: Accumulation, dtype: str = "float64") -> float:
    """Return by how many per cent the last loss differs from that of training by whole batches."""
    last, whole = (_curve(targets, one, dtype)[-1] for one in (rule, WHOLE))
    return 100 * abs(last - whole) / whole


def a43() -> Computed:
    """Train with Adam by whole batches and by four micro-batches, and compare the last losses."""
    even, uneven = (_difference(targets, MEAN_OF_MEANS) for targets in (EVEN, UNEVEN))
    by_tokens = _difference(UNEVEN, Accumulation(steps=4))
    in_fp32 = _difference(EVEN, MEAN_OF_MEANS, "float32")
    return computed(
        {
            "difference": (even, "%"),
            "difference.unequal_targets": (uneven, "%"),
            "difference.unequal_targets_by_tokens": (by_tokens, "%"),
        },
        Statement(
            says="in theory Adam trains alike: it sees the accumulated gradient once",
            holds=max(even, by_tokens) < 1e-10,
            found="up to rounding in fp64 after 24 steps",
        ),
        Statement(
            says="in practice, rounding in fp32, the loss differs by less than 1 %",
            holds=in_fp32 < 1,
            found=f"by less than {1e-4 if in_fp32 < 1e-4 else 1:g} %; where texts have unequal numbers of "
            f"targets the mean of means adds {uneven:.1g} % in this example",
        ),
    )


ROWS = {
    "A27": a27, "A28": a28, "A29": a29, "A30": a30, "A31": a31, "A33": a33, "A39": a39, "A43": a43,
}  # fmt: skip
