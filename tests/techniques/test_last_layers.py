"""The last layers: they train and nothing before them does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from paribus.machine import Machine
from paribus.techniques import LastLayers, Live, NoEffect, Setting

CPU = Machine(name="a CPU", memory_bytes=1, cores=1)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_the_last_layer_and_the_norm_behind_it_train(name: str) -> None:
    run = tiny.run(tiny.MODELS[name](), LastLayers(), max_steps=3)
    inside = {n for n in run.weights if ".1." in n}
    behind = set(run.weights) - inside
    assert inside
    assert {n.rpartition(".")[0].rpartition(".")[2] for n in behind} <= {"norm", "ln_f", "final_layer_norm"}
    assert behind
    assert run.proofs[0]["tensors_moved"] == len(run.weights)
    assert "head_is_input_embeddings" not in run.proofs[0]


def test_more_layers_without_the_norm() -> None:
    run = tiny.run(tiny.llama(), LastLayers(layers=2, final_norm=False), max_steps=3)
    assert {n.split(".")[2] for n in run.weights} == {"0", "1"}


@pytest.mark.parametrize(("make", "tied"), [(tiny.llama, True), (tiny.qwen2, False)])
def test_a_tied_head_is_the_embeddings_and_the_proof_says_so(make: Any, tied: bool) -> None:
    run = tiny.run(make(), LastLayers(head=True), max_steps=3)
    assert run.proofs[0]["head_is_input_embeddings"] is tied
    assert ("model.embed_tokens.weight" in run.weights) is tied
    assert ("lm_head.weight" in run.weights) is not tied


def test_a_model_with_fewer_layers_is_an_obstacle() -> None:
    setting = Setting(tiny.facts("opt"))
    assert LastLayers(layers=2).obstacle(CPU, setting) is None
    found = LastLayers(layers=3).obstacle(CPU, setting)
    assert found is not None
    assert found.reason == "the last 3 layers are to train and OPTForCausalLM has 2"
    with (
        pytest.raises(NoEffect, match="has 2 layers"),
        LastLayers(layers=3).applied(tiny.opt(), Live(seed=0)),
    ):
        pass


def test_what_was_saved_is_the_trained_layers_alone(tmp_path: Path) -> None:
    tuning, ids = LastLayers(), torch.arange(3, 9).unsqueeze(0)
    with tuning.applied(tiny.llama(seed=1), Live(seed=0)) as model:
        tuning.save(model, tmp_path)
        layer = model.model.layers[1].mlp.up_proj.weight.clone()
    base = tiny.llama(seed=0).eval()
    first, exact = base.model.layers[0].mlp.up_proj.weight.clone(), base(input_ids=ids).logits
    with tuning.applied(base, Live(seed=0)) as model:
        tuning.load(model, tmp_path)
        assert torch.equal(model.model.layers[1].mlp.up_proj.weight, layer)
        assert torch.equal(model.model.layers[0].mlp.up_proj.weight, first)
        assert not torch.equal(model(input_ids=ids).logits, exact)
    assert all(parameter.requires_grad for parameter in base.parameters())
