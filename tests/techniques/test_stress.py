"""Outlier channels change no function and make numbers harder to round."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiny
from paribus.machine import Machine
from paribus.techniques import (
    Fp8,
    Full,
    Int8,
    Live,
    Lora,
    ModelFacts,
    NoEffect,
    NoStress,
    OutlierChannels,
    Setting,
)

MODELS = {
    "llama": tiny.llama, "gpt2": tiny.gpt2, "qwen2": tiny.qwen2, "mistral": tiny.mistral, "opt": tiny.opt,
    "gemma": tiny.gemma,
}  # fmt: skip
IDS = torch.arange(3, 19).unsqueeze(0)
STRESS = OutlierChannels(channels=2)


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", MODELS)
def test_the_function_in_fp32_stays_and_the_weights_come_back(name: str) -> None:
    model = MODELS[name]().eval()
    exact, before = model(input_ids=IDS).logits, weights(model)
    with STRESS.applied(model, Live(seed=0)):
        stressed = model(input_ids=IDS).logits
        assert any(not torch.equal(value, before[key]) for key, value in weights(model).items())
    if name == "gemma":  # whose norms add one to their weight, in fp32
        torch.testing.assert_close(stressed, exact, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(stressed, exact)
    for key, value in weights(model).items():
        assert value.equal(before[key]) or (name == "gemma" and torch.allclose(value, before[key], atol=1e-5))


def test_a_factor_that_is_no_power_of_two_rounds_the_last_bits() -> None:
    model = tiny.llama().eval()
    exact = model(input_ids=IDS).logits
    with OutlierChannels(channels=2, factor=50).applied(model, Live(seed=0)):
        torch.testing.assert_close(model(input_ids=IDS).logits, exact, rtol=1e-4, atol=1e-6)


def test_the_weights_come_back_where_training_fails() -> None:
    model = tiny.llama()
    before = weights(model)
    with pytest.raises(RuntimeError), STRESS.applied(model, Live(seed=0)):
        raise RuntimeError
    assert all(value.equal(before[key]) for key, value in weights(model).items())


def test_integers_suffer_most_by_tensor_and_floats_hardly() -> None:
    """A raised channel sets the scale of its tensor or row: the rest has 127 / 64 steps, or an exponent."""
    tensor, row = Int8(compute="emulated", scaling="tensor"), Int8(compute="emulated")
    fp8 = Fp8(compute="emulated", recipe="all_e4m3")
    by_tensor, by_row, floats = (loss(one, STRESS) / loss(one, None) for one in (tensor, row, fp8))
    assert by_tensor > 2 * floats and by_row > 2 * floats and floats < 1.5
    assert loss(tensor, STRESS) > loss(row, STRESS) > 2 * loss(fp8, STRESS)


def loss(technique: Any, stress: Any) -> float:
    """Return how far rounded logits are from the exact ones, over their size."""
    model, live = tiny.llama().eval(), Live(seed=0)
    exact = model(input_ids=IDS).logits.detach()
    stressed = (stress or NoStress()).applied(model, live)
    with stressed, technique.applied(model, live), technique.as_trained(model, live), torch.no_grad():
        rounded = model(input_ids=IDS).logits
    return float((rounded - exact).norm() / exact.norm())


@pytest.mark.parametrize("tuning", [Full(), Lora(r=4)], ids=lambda one: one.kind)
def test_the_proof_says_how_far_channels_stand_out(tuning: Any) -> None:
    proof = tiny.run(tiny.llama(), STRESS, tuning, max_steps=2).proofs[0]
    assert len(proof["channels"]) == 2
    found = proof["largest_to_median"]
    assert found["after"] > 10 * found["before"] > 10


def test_a_small_factor_has_no_effect() -> None:
    with pytest.raises(NoEffect, match="stands out"):
        tiny.run(tiny.llama(), OutlierChannels(channels=2, factor=1.01), Full(), max_steps=2)


FACTS: dict[str, Any] = {
    "architecture": "X", "parameters": 1, "bias_parameters": 0, "layers": 1, "vocabulary": 1,
}  # fmt: skip
CPU = Machine(name="a CPU", memory_bytes=1, cores=1)


@pytest.mark.parametrize(
    ("model_type", "width", "reason"),
    [
        ("llama", 32, None),
        ("bloom", 32, "not known which linear layers of a bloom"),
        ("llama", 8, "no outliers"),
    ],
)
def test_what_it_cannot_raise_is_said_while_planning(model_type: str, width: int, reason: str | None) -> None:
    setting = Setting(ModelFacts(model_type=model_type, hidden_size=width, **FACTS))
    found = OutlierChannels().obstacle(CPU, setting)
    assert (found is None) if reason is None else (found is not None and reason in found.reason)
