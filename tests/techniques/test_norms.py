"""Only the norms train, whatever a family calls them; a model whose norms have no weights is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import OlmoConfig, OlmoForCausalLM, Qwen3Config, Qwen3ForCausalLM

import tiny
from paribus.machine import Machine
from paribus.techniques import Live, NoEffect, Norms, Setting
from paribus.train.classifier import Classifier

CPU = Machine(name="a CPU", memory_bytes=1, cores=1)
TENSORS = {"llama": 5, "gpt2": 10, "qwen2": 5, "mistral": 5, "opt": 10, "gemma": 5}
"""Two layers of two norms and the last one; LayerNorm has a bias beside its weight."""


@pytest.mark.parametrize("name", tiny.MODELS)
def test_the_norms_train_and_nothing_else(name: str) -> None:
    run = tiny.run(tiny.MODELS[name](), Norms(), max_steps=3)
    assert len(run.weights) == TENSORS[name]
    assert {weight.shape for weight in run.weights.values()} == {(32,)}
    assert run.proofs[0]["tensors_moved"] == TENSORS[name]
    (kind,) = run.proofs[0]["modules_trained"]
    assert kind.endswith("Norm") and run.proofs[0]["modules_trained"][kind] == 5
    assert run.proofs[0]["norms_frozen"] == 0


@pytest.mark.parametrize("name", tiny.MODELS)
def test_the_norms_of_the_layers_alone(name: str) -> None:
    run = tiny.run(tiny.MODELS[name](), Norms(where="layers"), max_steps=3)
    assert {next(part for part in n.split(".") if part.isdigit()) for n in run.weights} == {"0", "1"}
    assert sum(run.proofs[0]["modules_trained"].values()) == 4
    assert run.proofs[0]["norms_frozen"] == 1


def test_norms_of_queries_and_keys_are_inside_the_layers() -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**tiny.SHARED, **tiny.SHAPE, head_dim=16))
    names = Norms(where="layers").chosen(model)
    assert len(names) == 8
    assert "model.layers.1.self_attn.k_norm.weight" in names


def olmo() -> Any:
    return OlmoForCausalLM(OlmoConfig(**tiny.SHARED, **tiny.SHAPE))


def test_norms_without_weights_are_an_obstacle_while_planning_and_no_effect_in_a_model() -> None:
    there = Setting(tiny.facts("llama").model_copy(update={"architecture": "Olmo", "model_type": "olmo"}))
    obstacle = Norms().obstacle(CPU, there)
    assert obstacle is not None
    assert obstacle.reason == "the norms of Olmo have no weights to train"
    assert "tuning: lora" in obstacle.way_out
    assert Norms().obstacle(CPU, Setting(tiny.facts("llama"))) is None
    for where in ("all", "layers"):
        with pytest.raises(NoEffect, match="no weights"), Norms(where=where).applied(olmo(), Live(seed=0)):
            pass


def test_a_head_has_norms_of_its_own_that_are_not_meant() -> None:
    with pytest.raises(NoEffect, match="no weights"):
        Norms().chosen(Classifier(olmo(), 3, "layer", 0))
    names = Norms().chosen(Classifier(tiny.llama(), 3, "layer", 0))
    assert len(names) == 5 and not any("head" in name for name in names)


@pytest.mark.parametrize("name", ["NormedEmbedding", "NormHead", "PreLayerNormLMHead"])
def test_a_module_that_only_speaks_of_norms_is_none(name: str) -> None:
    model = tiny.llama()
    model.other = type(name, (torch.nn.Linear,), {})(2, 2)
    assert len(Norms().chosen(model)) == 5


def test_the_proof_names_a_module_that_is_no_norm() -> None:
    """A planted fault: one linear layer trains beside the norms."""

    class Leaking(Norms):
        def chosen(self, model: Any) -> set[str]:
            return super().chosen(model) | {"model.layers.0.mlp.up_proj.weight"}

    proof = tiny.run(tiny.llama(), Leaking(), max_steps=3).proofs[0]
    assert proof["modules_trained"] == {"LlamaRMSNorm": 5, "Linear": 1}
