"""Law: a null setting is the baseline, bit for bit; and a rerun is identical."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import tiny
from paribus.techniques import Accumulation, Bf16, Fp8, Fp32, Full, Live, Lora, Noise, Technique


def same(one: tiny.Run, other: tiny.Run) -> bool:
    """Say whether two runs are equal to the last bit: curve, gradients' norms, order and final weights."""
    return (
        one.trained.curve == other.trained.curve
        and one.trained.order_sha256 == other.trained.order_sha256
        and all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    )


@pytest.mark.parametrize("tuning", [Full(), Lora(r=4)], ids=["full", "lora"])
@pytest.mark.parametrize(
    "null",
    [Noise(alpha=0), Accumulation(steps=1), Accumulation(steps=1, normalise="tokens"), Fp32()],
    ids=repr,
)
def test_a_null_setting_is_the_baseline(tuning: Technique, null: Technique) -> None:
    assert same(tiny.run(tiny.llama(), tuning), tiny.run(tiny.llama(), tuning, null))


class Leaking(Noise):
    """A planted fault: a hook is left in place at alpha 0 and adds as good as nothing."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        hook = model.get_input_embeddings().register_forward_hook(lambda _, __, out: out * (1 + 2e-7))
        try:
            yield model
        finally:
            hook.remove()


def test_the_law_catches_a_hook_that_is_almost_null() -> None:
    assert not same(tiny.run(tiny.llama(), Full()), tiny.run(tiny.llama(), Full(), Leaking(alpha=0)))


@pytest.mark.parametrize(
    "techniques",
    [
        (Full(), Noise(alpha=5), Accumulation(steps=4)),
        (Lora(r=4), Bf16(compute="emulated"), Noise(alpha=5)),
        (Full(), Fp8(compute="emulated"), Accumulation(steps=2)),
    ],
    ids=["noise", "lora-bf16", "fp8"],
)
def test_a_rerun_is_identical_whatever_ran_before(techniques: tuple[Technique, ...]) -> None:
    first = tiny.run(tiny.llama(), *techniques)
    torch.rand(17)
    assert same(first, tiny.run(tiny.llama(), *techniques))


class Unkeyed(Noise):
    """A planted fault: noise from a generator that nothing seeds."""

    def draw(self, live: Live, embedded: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator()
        generator.seed()
        return torch.rand(embedded.shape, generator=generator) * 1e-6


def test_the_law_catches_noise_without_a_seed() -> None:
    runs = [tiny.run(tiny.llama(), Full(), Unkeyed(alpha=5)) for _ in range(2)]
    assert not same(*runs)


def test_another_seed_is_another_run() -> None:
    """Seeds differ in order, initial adapter and noise; the base is the same."""
    one, other = (tiny.run(tiny.llama(), Lora(r=4), Noise(alpha=5), seed=seed) for seed in (0, 1))
    assert one.trained.order_sha256 != other.trained.order_sha256
    assert not same(one, other)
