"""What trains: LoRA's start depends on layer names alone, wrong names are told, BitFit needs biases."""

from __future__ import annotations

import pytest
import torch

import tiny
from paribus.machine import Machine
from paribus.techniques import BitFit, Live, Lora, ModelFacts, NoEffect, Setting
from paribus.techniques.tuning.weights import patterns

CPU = Machine(name="a CPU", memory_bytes=1, cores=1)


def facts(biases: int) -> ModelFacts:
    return ModelFacts(
        architecture="LlamaForCausalLM",
        model_type="llama",
        parameters=10,
        bias_parameters=biases,
        hidden_size=1,
        layers=1,
        vocabulary=1,
    )


def start(lora: Lora, seed: int = 0) -> dict[str, torch.Tensor]:
    with lora.applied(tiny.llama(), Live(seed=seed)) as model:
        return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def test_a_layer_starts_the_same_whatever_else_is_adapted() -> None:
    every, some = start(Lora(r=4)), start(Lora(r=4, target_modules=("v_proj", "down_proj")))
    assert len(every) == 2 * 7 * 2
    assert len(some) == 2 * 2 * 2
    assert all(torch.equal(every[name], value) for name, value in some.items())


def test_a_start_depends_on_the_seed_and_on_no_global_state() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = start(Lora(r=4))
    torch.rand(9)
    again, other = start(Lora(r=4)), start(Lora(r=4), seed=1)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if "lora_A" in name)
    assert all(value.abs().max() == 0 for name, value in one.items() if "lora_B" in name)
    torch.set_rng_state(before)


def test_lora_leaves_the_base_as_it_is_at_first() -> None:
    ids = torch.arange(3, 11).unsqueeze(0)
    model = tiny.llama().eval()
    exact = model(input_ids=ids).logits
    with Lora().applied(model, Live(seed=0)) as wrapped:
        assert torch.equal(wrapped.eval()(input_ids=ids).logits, exact)


def test_all_linear_spares_the_head_and_scales_by_alpha_over_r() -> None:
    with Lora(r=4, lora_alpha=8).applied(tiny.llama(), Live(seed=0)) as model:
        adapted = {path for path, module in model.named_modules() if hasattr(module, "lora_A")}
        layer = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    assert len(adapted) == 14
    assert not any("lm_head" in path for path in adapted)
    assert layer.scaling == {"default": 2.0}


def test_gpt2_is_adapted_in_its_conv1d_layers() -> None:
    proof = tiny.run(tiny.gpt2(), Lora(r=4), max_steps=3).proofs[0]
    assert proof["layers_adapted"] == 4


def test_a_wrong_module_name_gets_the_nearest_ones() -> None:
    with (
        pytest.raises(NoEffect, match="no module of LlamaForCausalLM is called 'q_prj'") as caught,
        Lora(target_modules=("v_proj", "q_prj")).applied(tiny.llama(), Live(seed=0)),
    ):
        pass
    assert "Did you mean 'q_proj'?" in caught.value.way_out
    assert "down_proj" in caught.value.way_out


def test_bitfit_needs_biases() -> None:
    obstacle = BitFit().obstacle(CPU, Setting(facts(0)))
    assert obstacle is not None
    assert "LlamaForCausalLM has none" in obstacle.reason
    assert "tuning: lora" in obstacle.way_out
    assert BitFit().obstacle(CPU, Setting(facts(3))) is None
    with pytest.raises(NoEffect, match="has no biases"), BitFit().applied(tiny.llama(), Live(seed=0)):
        pass


def test_bitfit_trains_every_bias() -> None:
    run = tiny.run(tiny.gpt2(), BitFit(), max_steps=3)
    assert len(run.weights) == 7  # two norms, four layers, the last norm
    assert all(name.endswith(".bias") for name in run.weights)


def test_names_are_shortened_to_their_kinds() -> None:
    names = [f"base_model.model.layers.{layer}.{part}.weight" for layer in range(3) for part in "abcdef"]
    assert patterns(names, most=2) == ["layers.*.a.weight", "layers.*.b.weight", "and 4 more"]


def test_a_module_that_cannot_be_adapted_is_told_by_its_name_alone() -> None:
    with (
        pytest.raises(NoEffect, match="Target module ModuleList is not supported") as caught,
        Lora(target_modules=("layers",)).applied(tiny.llama(), Live(seed=0)),
    ):
        pass
    assert "q_proj" not in caught.value.reason
