"""Law: seeds differ in order, initial adapter and noise, and in nothing else that a study holds fixed."""

from __future__ import annotations

import torch
from observing import apart

import tiny
from paribus.techniques import Lora, Noise


def test_another_seed_is_another_run_from_the_same_base() -> None:
    one, other = (tiny.run(tiny.llama(), Lora(r=4), Noise(alpha=5), seed=seed) for seed in (0, 1))
    assert one.trained.order_sha256 != other.trained.order_sha256
    assert apart(one, other) > 1e-4
    first, second = (run.live.observed["initial_weights"] for run in (one, other))
    differing = {name for name in first if first[name] != second[name]}
    assert differing
    assert all(".lora_A" in name for name in differing)


def test_an_alpha_keeps_order_and_start_of_the_others() -> None:
    quiet, loud = (tiny.run(tiny.llama(), Lora(r=4), Noise(alpha=alpha)) for alpha in (0, 5))
    assert quiet.trained.order_sha256 == loud.trained.order_sha256
    assert quiet.live.observed["initial_weights"] == loud.live.observed["initial_weights"]
    assert not all(torch.equal(quiet.weights[name], loud.weights[name]) for name in quiet.weights)
