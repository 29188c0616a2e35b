"""Claims on memory, cards, speed and money that counting parameters and bytes, or multiplying, settles."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.recompute.fp8_listings import roles
from paribus.compare.shapes import gigabytes
from paribus.machine import GIB, Machine
from paribus.techniques.precision import native

FULL: Final = 16
"""Bytes a parameter of weights, gradients and Adam's two moments in FP32: 4 + 4 + 8. Autocast keeps them."""
HALF: Final = 8
"""The same with everything in 16 bits: 2 + 2 + 4."""
LEAST: Final = 4
"""The same with everything in 8 bits: 1 + 1 + 2."""

EXAMPLE: Final = {"weights": 32.0, "activations": 40.0, "gradients": 32.0, "optimizer": 64.0}
"""The article's own account of 8B parameters in FP32 at a batch of 32, in GB (lines 719-723)."""

A100: Final = Machine(
    device="cuda", name="an A100", memory_bytes=80 * GIB, cores=1, compute_capability=(8, 0)
)
"""Its compute capability: NVIDIA, developer.nvidia.com/cuda-gpus."""
A100_GB: Final = 40
HOURS, PRICE = 24.0, 3.0
"""An epoch in FP32 and an A100's hour in dollars, as the article has them (lines 54-57)."""


def state(size: str, bytes_each: int) -> float:
    """Return the GB of a Llama-2's parameters at so many bytes each."""
    return gigabytes(f"llama_2_{size.lower()}", bytes_each)


def saved(activations: float, before: float = 40.0) -> float:
    """Return the percentage of the article's example that is saved when `before` GB of activations shrink."""
    total = sum(EXAMPLE.values()) - EXAMPLE["activations"] + before
    return 100 * (before - activations) / total


def a67() -> Computed:
    """Add the times of the table, and ask whether an A100 multiplies in FP8 at all."""
    times = {"fp32": (45, 90), "fp16": (23, 46), "bf16": (23, 46), "fp8": (15, 30)}
    totals = {name: sum(pair) for name, pair in times.items()}
    obstacle = native.obstacle("fp8", A100)
    return computed(
        {f"{name}.total": (total, "ms") for name, total in totals.items()}
        | {f"{name}.speedup": (totals["fp32"] / total, "x") for name, total in totals.items()},
        Statement(
            says="FP8 was timed on an A100", holds=obstacle is None, found=obstacle.reason if obstacle else ""
        ),
    )


def a68() -> Computed:
    """Add the table up, and count what training a 7B model holds beside weights and activations."""
    table = {"fp32": (4, 24, FULL), "fp16": (2, 12, HALF), "fp8": (1, 6, LEAST)}
    printed = {"fp32": 28 + 24, "fp16": 14 + 12, "fp8": 7 + 6}
    numbers: dict[str, tuple[float, str]] = {}
    for name, (width, _, _) in table.items():
        numbers[f"{name}.model"] = (state("7B", width), "GB")
        numbers[f"{name}.total"] = (printed[name], "GB")
        numbers[f"{name}.saving"] = (100 * (1 - printed[name] / printed["fp32"]), "%")
    statements = (
        Statement(
            says=f"{total} GB are all that training takes in {name}",
            holds=state("7B", table[name][2]) + table[name][1] <= total,
            found=f"weights, gradients and Adam's moments alone are {state('7B', table[name][2]):.0f} GB "
            "even with all of them in that format",
        )
        for name, total in printed.items()
    )
    return computed(numbers, *statements)


def a74() -> Computed:
    """Count the state of a 70B model for one card."""
    full, least = state("70B", FULL), state("70B", LEAST)
    return computed(
        {
            "fp8.saving": (saved(10), "%"),
            "weights of 70B in FP8": (state("70B", 1), "GB"),
            "state of 70B as its FP8 layer keeps it": (full, "GB"),
            "state of 70B with all of it in 8 bits": (least, "GB"),
        },
        Statement(
            says="one card trains a 70B model",
            holds=least <= 80,
            found=f"weights, gradients and moments, FP32 in its layer, are {full:.0f} GB, and {least:.0f} GB "
            "if all were in 8 bits; accumulation changes none of them, and an A100 has at most 80 GB",
        ),
    )


class Plan(NamedTuple):
    """A row of the article's table for a 13B model: GB, cards, speed, and bytes a parameter at the least."""

    memory: float
    gpus: int
    speed: float
    least: int


PLANS: Final = {
    "fp32": Plan(200, 5, 1.0, FULL),
    "fp16": Plan(100, 3, 1.8, HALF),
    "fp16+accumulation": Plan(50, 2, 1.5, HALF),
    "all": Plan(25, 1, 2.5, LEAST),
}


def a76() -> Computed:
    """Recompute cards and costs, and hold each memory against the state of a 13B model."""
    numbers: dict[str, tuple[float, str]] = {}
    for name, plan in PLANS.items():
        numbers[f"{name}.gpus"] = (math.ceil(plan.memory / A100_GB), "cards")
        numbers[f"{name}.cost"] = (plan.gpus * HOURS / plan.speed * PRICE, "USD")
    statements = (
        Statement(
            says=f"{plan.memory:g} GB hold the training with {name}",
            holds=state("13B", plan.least) < plan.memory,
            found=f"weights, gradients and Adam's moments are {state('13B', plan.least):.0f} GB at "
            f"{plan.least} bytes a parameter",
        )
        for name, plan in PLANS.items()
    )
    return computed(numbers, *statements)


def a77() -> Computed:
    """Multiply the factors, and ask what each can save of the article's own example."""
    combined = PLANS["fp32"].memory * (1 - 0.75) * (1 - 0.5)
    quality = {"FP16 and accumulation": 99.9, "all": 99.5}
    return computed(
        {
            "fp8.saving": (saved(10), "%"),
            "accumulation.saving": (saved(40 / 8), "%"),
            "memory of all factors": (combined, "GB"),
        },
        Statement(
            says="accumulation of 8 halves the memory",
            holds=saved(40 / 8) >= 50,
            found=f"of the article's 168 GB it can save {saved(40 / 8):.1f} %, since 128 are no activations",
        ),
        Statement(
            says="FP8 takes three quarters off",
            holds=saved(10) >= 75,
            found="its layer keeps FP32 weights, gradients and moments: of the 168 GB it takes at most "
            f"{saved(10):.1f} %",
        ),
        Statement(
            says="the table's quality has NEFTune's 10 % in it",
            holds=quality["all"] > quality["FP16 and accumulation"],
            found=f"it falls from {quality['FP16 and accumulation']} to {quality['all']} %",
        ),
    )


def a78() -> Computed:
    """Halve the activations of the article's example, twice, and count the work of an epoch by its split."""
    whole, parts = _work(64), sum(_work(8) for _ in range(8))
    return computed(
        {
            "half.saving": (saved(20), "%"),
            "fp8.saving": (saved(10, before=20), "%"),
            "operations of 8 micro-batches over one batch": parts / whole,
        },
        Statement(
            says="mixed precision halves the memory",
            holds=saved(20) >= 50,
            found="it keeps FP32 weights, gradients and moments: of the article's 168 GB it saves "
            f"{saved(20):.1f} %",
        ),
        Statement(
            says="a batch made larger by accumulation trains faster",
            holds=parts < whole,
            found="an example takes the same operations in any split; the article's own A32 has it slower",
        ),
    )


def _work(rows: int) -> int:
    """Count the floating-point operations of a forward and backward pass of a linear layer."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    layer = torch.nn.Linear(16, 16)
    with FlopCounterMode(display=False) as counter:
        layer(torch.ones(rows, 16, requires_grad=True)).sum().backward()
    return counter.get_total_flops()


def a79() -> Computed:
    """Multiply micro-batch and steps, and hold each card against the state of its model."""
    table = {"7B": (4, 8), "13B": (2, 16), "70B": (1, 32)}
    numbers: dict[str, tuple[float, str] | float] = {}
    for size, (micro_batch, steps) in table.items():
        numbers[f"{size}.memory"] = (state(size, FULL), "GB")
        numbers[f"{size}.effective_batch"] = micro_batch * steps
        numbers[f"{size} weights alone, 16 bits"] = (state(size, 2), "GB")
        numbers[f"{size} weights alone, 4 bits"] = (state(size, 1) / 2, "GB")
    return computed(numbers)


def a88() -> Computed:
    """Take the saving from the article's own table, 168 to 138 GB with four micro-batches."""
    own = 100 * (168 - 138) / 168
    share = 100 * EXAMPLE["activations"] / sum(EXAMPLE.values())
    return computed(
        {"saving.low": (own, "%"), "saving.high": (own, "%"), "share of activations": (share, "%")},
        Statement(
            says="activations are half of the memory or more",
            holds=share >= 50,
            found=f"they are {share:.1f} % of its own example, and accumulation saves nothing else",
        ),
    )


def a91() -> Computed:
    """Judge the summary of FP8 by its roles and by what it can save."""
    numbers, statements = roles()
    return computed(numbers | {"saving": (saved(10), "%")}, *statements)


def a92() -> Computed:
    """Multiply cards, hours and the price of $3 an hour."""
    before, after = 5 * 24 * PRICE, 1 * 10 * PRICE
    return computed(
        {
            "before.cost": (before, "USD"),
            "after.cost": (after, "USD"),
            "saving": (100 * (1 - after / before), "%"),
        }
    )


ROWS = {
    "A67": a67, "A68": a68, "A74": a74, "A76": a76, "A77": a77, "A78": a78, "A79": a79, "A88": a88,
    "A91": a91, "A92": a92,
}  # fmt: skip
