"""Prompt methods: no row feels its padding, each part is drawn by its name, what is saved can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

import tiny
from paribus.machine import Machine
from paribus.techniques import (
    Accumulation,
    LayerCheckpointing,
    Live,
    NoCheckpointing,
    NoEffect,
    PrefixTuning,
    PromptTuning,
    PTuning,
    Setting,
)
from paribus.techniques.tuning.prompt import PromptMethod
from paribus.train.data import collate
from paribus.train.objective import NextToken

CPU = Machine(name="a CPU", memory_bytes=1, cores=1)
METHODS = (
    PromptTuning(),
    PromptTuning(prompt_tuning_init="sample_vocab"),
    PrefixTuning(),
    PrefixTuning(prefix_projection=True, encoder_hidden_size=6),
    PTuning(),
    PTuning(encoder_reparameterization_type="LSTM", encoder_hidden_size=4, encoder_num_layers=1),
)
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)


def losses(model: Any, rows: Any) -> list[float]:
    """Score rows in one batch, padded on the right; returns the summed loss of each."""
    batch = collate(rows, 0)
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = model.eval()(**batch, use_cache=False).logits
    return [NextToken().summed(logits[i : i + 1], labels[i : i + 1]).item() for i in range(len(rows))]


@every_method
@pytest.mark.parametrize("name", tiny.MODELS)
def test_no_row_feels_its_padding(name: str, method: PromptMethod) -> None:
    rows = tiny.rows(6)
    base = tiny.MODELS[name](dtype=torch.float64)
    before = losses(base, rows)
    with method.applied(base, Live(seed=0)) as model:
        together = losses(model, rows)
        alone = [losses(model, [row])[0] for row in rows]
    assert together == pytest.approx(alone, rel=1e-12)
    assert all(abs(one - other) > 1e-5 for one, other in zip(together, before, strict=True))


def test_padding_between_the_prompt_and_the_row_is_felt() -> None:
    """The planted fault of the law above: rows padded on the left stand in other positions."""
    ids = torch.tensor([[5, 6, 7, 8]])
    padded = torch.tensor([[0, 0, 5, 6, 7, 8]])
    with PromptTuning().applied(tiny.gpt2(dtype=torch.float64).eval(), Live(seed=0)) as model:
        plain = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -4:]
        moved = model(input_ids=padded, attention_mask=(padded > 0).long()).logits[:, -4:]
    assert (plain - moved).abs().max() > 1e-3


@every_method
def test_splitting_a_batch_changes_nothing(method: PromptMethod) -> None:
    whole, split = (
        tiny.run(tiny.llama(dtype=torch.float64), method, Accumulation(steps=steps), max_steps=3)
        for steps in (1, 4)
    )
    assert whole.weights.keys() == split.weights.keys()
    assert tiny.distance(whole, split) < 1e-10


@every_method
def test_a_start_depends_on_the_seed_and_on_no_global_state(method: PromptMethod) -> None:
    def start(seed: int) -> dict[str, torch.Tensor]:
        with method.applied(tiny.llama(), Live(seed=seed)) as model:
            return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = start(0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    again, other = start(0), start(1)
    assert all(name.startswith("prompt_encoder.default.") for name in one)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_a_part_is_drawn_by_its_name_alone() -> None:
    """The embedding of a prefix starts the same whatever stands behind it."""

    def embedding(method: PromptMethod) -> torch.Tensor:
        with method.applied(tiny.llama(), Live(seed=0)) as model:
            return model.prompt_encoder["default"].embedding.weight.detach().clone()

    small = embedding(PTuning(encoder_hidden_size=4))
    assert torch.equal(small, embedding(PTuning(encoder_hidden_size=9)))
    assert torch.equal(small, embedding(PromptTuning()))


def test_a_prompt_of_sampled_words_holds_embeddings_of_the_model() -> None:
    base = tiny.llama()
    with PromptTuning(prompt_tuning_init="sample_vocab").applied(base, Live(seed=0)) as model:
        prompt = model.prompt_encoder["default"].embedding.weight
        words = base.get_input_embeddings().weight
        assert all(any(torch.equal(row, word) for word in words) for row in prompt)


@every_method
def test_what_was_saved_goes_on_like_the_whole(method: PromptMethod, tmp_path: Path) -> None:
    """A step, save, a fresh model of another seed, load, a step: the same as two."""
    first, second = tiny.rows(32)[:16], tiny.rows(32)[16:]
    whole = trained(method, 0, [first, second], None, tmp_path / "whole")
    trained(method, 0, [first], None, tmp_path / "half")
    resumed = trained(method, 5, [second], tmp_path / "half", tmp_path / "rest")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert (tmp_path / "half" / "adapter_model.safetensors").exists()


def trained(method: PromptMethod, seed: int, parts: Any, load: Path | None, save: Path) -> dict[str, Any]:
    """Take a plain gradient step a part under a method, from what was saved if given, and save."""
    with method.applied(tiny.llama(), Live(seed=seed)) as wrapped:
        if load:
            method.load(wrapped, load)
        optimizer = torch.optim.SGD([p for p in wrapped.parameters() if p.requires_grad], lr=0.5)
        for part in parts:
            ids = torch.tensor([row.input_ids[:4] for row in part])
            wrapped(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        method.save(wrapped, save)
        return {n: p.detach().clone() for n, p in wrapped.named_parameters() if p.requires_grad}


def test_what_peft_saves_of_an_encoder_cannot_go_on(tmp_path: Path) -> None:
    """The planted fault: loading the computed prompts in the place of the encoder's embedding."""
    from peft import load_peft_weights, set_peft_model_state_dict

    rows, method = tiny.rows(4), PTuning()
    with method.applied(tiny.llama(), Live(seed=0)) as model:
        method.save(model, tmp_path)
        before = losses(model, rows)
        set_peft_model_state_dict(model, load_peft_weights(str(tmp_path), device="cpu"))
        assert losses(model, rows) != pytest.approx(before, rel=1e-4)
        method.load(model, tmp_path)
        assert losses(model, rows) == before


@every_method
def test_no_trace_is_left_and_nothing_merges(method: PromptMethod) -> None:
    model, rows = tiny.llama().eval(), tiny.rows(4)
    before, modules = losses(model, rows), [id(module) for module in model.modules()]
    with method.applied(model, Live(seed=0)) as wrapped:
        assert method.merged(wrapped) is None
    assert losses(model, rows) == before
    assert [id(module) for module in model.modules()] == modules
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.get_input_embeddings()._forward_hooks


def test_the_proof_counts_virtual_tokens_and_what_moved() -> None:
    proof = tiny.run(tiny.llama(), PTuning(num_virtual_tokens=3, encoder_hidden_size=5), max_steps=2).proofs[
        0
    ]
    assert proof["virtual_tokens"] == 3
    assert proof["trainable_parameters"] == 3 * 32 + (32 * 5 + 5) + (5 * 5 + 5) + (5 * 32 + 32)
    assert proof["tensors_moved"] == 7
    prefix = tiny.run(tiny.llama(), PrefixTuning(num_virtual_tokens=3), max_steps=2).proofs[0]
    assert prefix["trainable_parameters"] == 3 * 2 * 2 * 1 * 16  # layers, keys and values, heads, their width


def test_prefixes_and_checkpointing_exclude_each_other() -> None:
    facts = tiny.facts("llama")
    checkpointed = Setting(facts, {"gradient_checkpointing": LayerCheckpointing()})
    found = PrefixTuning().obstacle(CPU, checkpointed)
    assert found is not None
    assert "gradient checkpointing does not keep" in found.reason
    assert PromptTuning().obstacle(CPU, checkpointed) is None
    assert PrefixTuning().obstacle(CPU, Setting(facts, {"gradient_checkpointing": NoCheckpointing()})) is None


def test_virtual_tokens_take_positions_of_the_model() -> None:
    facts = tiny.facts("gpt2")
    assert PromptTuning().obstacle(CPU, Setting(facts, max_length=56)) is None
    found = PromptTuning().obstacle(CPU, Setting(facts, max_length=57))
    assert found is not None
    assert "8 virtual tokens and 57 tokens of text are more than the 64" in found.reason
    assert found.way_out == "set training.max_length to 56 or less"
    full = PromptTuning(num_virtual_tokens=64).obstacle(CPU, Setting(facts))
    assert full is not None
    assert full.way_out == "set tuning.num_virtual_tokens to fewer"


def test_settings_without_effect_are_errors() -> None:
    with pytest.raises(ValidationError, match="set prefix_projection: true"):
        PrefixTuning(encoder_hidden_size=4)
    with pytest.raises(ValidationError, match="the MLP always has two hidden layers"):
        PTuning(encoder_num_layers=3)


def test_keys_that_peft_makes_in_another_shape_are_refused() -> None:
    """Falcon's heads share one key, and its config does not say so in the words that peft reads."""
    from transformers import FalconConfig, FalconForCausalLM

    config = FalconConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
    with (
        pytest.raises(
            NoEffect, match=r"\[\(2, 8\), \(2, 8\)\] for FalconForCausalLM.*\[\(1, 8\), \(1, 8\)\]"
        ),
        PrefixTuning().applied(FalconForCausalLM(config), Live(seed=0)),
    ):
        pass
