"""IA3: which layers are scaled, at which end, and what that costs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from weight_space import Found, split_difference, unknown_type

import tiny
from paribus.machine import Machine
from paribus.techniques import Ia3, Live, NoEffect, Setting

CPU = Machine(name="a CPU", memory_bytes=1, cores=1)
SCALED = {
    "llama": (["self_attn.k_proj", "self_attn.v_proj"], "mlp.down_proj", 2 * (16 + 16 + 64)),
    "qwen2": (["self_attn.k_proj", "self_attn.v_proj"], "mlp.down_proj", 2 * (16 + 16 + 64)),
    "mistral": (["self_attn.k_proj", "self_attn.v_proj"], "mlp.down_proj", 2 * (16 + 16 + 64)),
    "gemma": (["self_attn.k_proj", "self_attn.v_proj"], "mlp.down_proj", 2 * (24 + 24 + 64)),
    "opt": (["self_attn.k_proj", "self_attn.v_proj"], "fc2", 2 * (32 + 32 + 64)),
    "gpt2": (["attn.c_attn"], "mlp.c_proj", 2 * (96 + 128)),
}


@pytest.mark.parametrize("name", SCALED)
def test_keys_values_and_feed_forward_are_scaled(name: str, tmp_path: Path) -> None:
    found = Found(name, Ia3(), tmp_path, learning_rate=1e-2)
    found.check()
    outer, inner, size = SCALED[name]
    assert found.proof["layers_scaled"] == {"output": 2 * len(outer), "input": 2}
    assert found.proof["trainable_parameters"] == size
    ends = {kind.partition("*.")[2] for kind in found.proof["modules_adapted"]}
    assert ends == {*outer, inner}
    assert found.proof["largest_change_of_a_scale"] > 0.01


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_split_of_the_batch_does_not_matter(name: str) -> None:
    assert split_difference(name, Ia3()) < 1e-8


def test_modules_can_be_named() -> None:
    ia3 = Ia3(target_modules=("q_proj", "down_proj"), feedforward_modules=("down_proj",))
    proof = tiny.run(tiny.llama(), ia3, max_steps=2).proofs[0]
    assert proof["layers_scaled"] == {"output": 2, "input": 2}
    assert proof["trainable_parameters"] == 2 * (32 + 64)
    assert (
        ia3.canonical() == Ia3(**{**ia3.model_dump(), "target_modules": ("down_proj", "q_proj")}).canonical()
    )


def test_a_feed_forward_module_that_is_no_target_is_an_error() -> None:
    with pytest.raises(ValidationError, match="fc2 must be named in target_modules too"):
        Ia3(feedforward_modules=("fc2",))
    with pytest.raises(ValidationError, match="fc2 must be named"):
        Ia3(target_modules=("q_proj",), feedforward_modules=("fc2",))


def test_an_unknown_architecture_is_an_obstacle_until_modules_are_named() -> None:
    found = Ia3().obstacle(CPU, Setting(unknown_type()))
    assert found is not None
    assert "a novel model are not known" in found.reason
    assert Ia3(target_modules=("q_proj",)).obstacle(CPU, Setting(unknown_type())) is None
    model = tiny.llama()
    model.config.model_type = "novel"
    with pytest.raises(NoEffect, match="layers of a novel model"), Ia3().applied(model, Live(seed=0)):
        pass


@pytest.mark.parametrize("name", tiny.MODELS)
def test_the_six_architectures_have_no_obstacle(name: str) -> None:
    assert Ia3().obstacle(CPU, Setting(tiny.facts(name))) is None


def test_vectors_start_at_one() -> None:
    with Ia3().applied(tiny.llama(), Live(seed=0)) as model:
        vectors = [p for name, p in model.named_parameters() if "ia3_l" in name]
        assert len(vectors) == 6
        assert all(torch.equal(vector, torch.ones_like(vector)) for vector in vectors)
