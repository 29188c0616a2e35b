"""Dropout is keyed by example and place, off in evaluation, exact under accumulation and recomputation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import tiny
from paribus.machine import host
from paribus.techniques import Accumulation, Dropout, Full, Live, Lora, NoEffect, Noise, Setting
from paribus.techniques.draws import dropped
from paribus.techniques.dropout import BLOCKS
from paribus.train.optimizers import OPTIMIZERS

HIDDEN, EMBEDDING = Dropout(p=0.2, where="hidden"), Dropout(p=0.2, where="embedding")
PLACES = [EMBEDDING, HIDDEN]
NAMES = ["embedding", "hidden"]
IDS = torch.tensor([[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]])


def live(epoch: int = 0) -> Live:
    return Live(seed=0, epoch=epoch, example_ids=("a", "b"), lengths=(3, 5))


def test_what_is_kept_is_scaled_so_that_the_mean_stays() -> None:
    at = Live(seed=0, example_ids=("a",), lengths=(500,))
    found = dropped(torch.ones(1, 600, 64), at, 0.25, "here")
    assert found[0, :500].unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert (found[0, :500] == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert found[0, 500:].unique().tolist() == [1]


def test_a_draw_depends_on_example_epoch_and_place_alone() -> None:
    ones = torch.ones(2, 5, 8)
    first = dropped(ones, live(), 0.5, "here")
    assert not torch.equal(first, dropped(ones, live(), 0.5, "there"))
    assert not torch.equal(first, dropped(ones, live(epoch=1), 0.5, "here"))
    swapped = Live(seed=0, example_ids=("b", "a"), lengths=(5, 3))
    assert torch.equal(dropped(ones, swapped, 0.5, "here")[[1, 0]], first)
    assert torch.equal(dropped(ones.view(10, 8), live(), 0.5, "here"), first.view(10, 8))
    row = dropped(torch.ones(1, 8, 8), live(), 0.5, "here")
    assert torch.equal(row[0, :3], first[0, :3]) and torch.equal(row[0, 3:], first[1])


@pytest.mark.parametrize("where", PLACES, ids=NAMES)
@pytest.mark.parametrize("tuning", [Full(), Lora(r=4)], ids=["full", "lora"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_the_proof_is_what_was_really_zeroed(name: str, tuning: Any, where: Dropout) -> None:
    run = tiny.run(tiny.MODELS[name](), tuning, where, max_steps=1, warmup_steps=0)
    proof = run.proofs[1]
    assert proof["places"] == (1 if where is EMBEDDING else 4)
    assert proof["share_zeroed"] == pytest.approx(0.2, abs=0.03)


class ByBatch(Dropout):
    """A planted fault: torch draws for the whole micro-batch."""

    def _hook(self, path: str, live: Live, observed: Any) -> Any:
        return lambda module, _, out: torch.nn.functional.dropout(out, self.p, module.training)


def split_difference(name: str, tuning: Any, dropout: Dropout, steps: int) -> float:
    runs = [
        tiny.run(
            tiny.MODELS[name](dtype=torch.float64),
            tuning,
            dropout,
            Accumulation(steps=split),
            max_steps=steps,
            proofs=False,
        )
        for split in (1, 4)
    ]
    return tiny.distance(*runs)


@pytest.mark.parametrize("where", PLACES, ids=NAMES)
@pytest.mark.parametrize("tuning", [Full(), Lora(r=4)], ids=["full", "lora"])
def test_final_weights_agree_however_a_batch_is_split(tuning: Any, where: Dropout) -> None:
    assert split_difference("llama", tuning, where, 16) < 1e-8


@pytest.mark.parametrize("name", [name for name in tiny.MODELS if name != "llama"])
def test_a_split_matters_in_no_model(name: str) -> None:
    assert split_difference(name, Full(), HIDDEN, 2) < 1e-8


def test_the_law_catches_dropout_that_is_drawn_by_batch() -> None:
    assert split_difference("llama", Full(), ByBatch(p=0.2), 4) > 1e-4


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("where", PLACES, ids=NAMES)
@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_recomputation_draws_the_same_again(name: str, where: Dropout, reentrant: bool) -> None:
    gradients = []
    for checkpointed in (False, True):
        model = tiny.MODELS[name]()
        model.config.use_cache = False
        if checkpointed:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        with where.applied(model, live()) as changed:
            changed.train()
            for module in changed.modules():  # what training switches off
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
                vars(module).update(
                    {"dropout": 0.0} if isinstance(vars(module).get("dropout"), float) else {}
                )
            changed(input_ids=IDS, labels=IDS).loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("where", PLACES, ids=NAMES)
def test_it_acts_in_training_alone_and_leaves_nothing_behind(where: Dropout) -> None:
    model = tiny.llama()
    exact = model.eval()(input_ids=IDS).logits
    with where.applied(model, live()) as changed:
        assert torch.equal(changed.eval()(input_ids=IDS).logits, exact)
        assert not torch.equal(changed.train()(input_ids=IDS).logits, exact)
    assert torch.equal(model.train()(input_ids=IDS).logits, exact)


@pytest.mark.parametrize("where", PLACES, ids=NAMES)
def test_an_adapter_that_adds_nothing_changes_no_draw(where: Dropout) -> None:
    """LoRA starts at the base, so under equal draws the wrapped model gives the base's own logits."""
    with where.applied(tiny.llama(), live()) as plain:
        expected = plain.train()(input_ids=IDS).logits
    with Lora(r=4).applied(tiny.llama(), live()) as model, where.applied(model, live()) as wrapped:  # type: ignore[arg-type]
        torch.testing.assert_close(wrapped.train()(input_ids=IDS).logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_virtual_tokens_in_front_shift_no_row() -> None:
    """Prompts lengthen the rows behind the embedding: a row draws for prompts and its own tokens alone."""
    import peft

    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    wrapped = peft.get_peft_model(tiny.llama(), config)
    at = live()
    with HIDDEN.applied(wrapped, at) as changed:  # type: ignore[arg-type]
        changed.train()(input_ids=IDS, attention_mask=(IDS > 0).long())
        proof = HIDDEN.proof(changed, at)
        assert at.observed["dropout"].elements == 4 * (3 + 5 + 2 * 4) * 32
    assert proof["share_zeroed"] == pytest.approx(0.2, abs=0.03)


def test_dropout_that_zeroes_nothing_is_told() -> None:
    at = live()
    with HIDDEN.applied(tiny.llama(), at) as model, pytest.raises(NoEffect, match="no activation was zeroed"):
        HIDDEN.proof(model, at)


SHAPE = tiny.SHARED | tiny.SHAPE


@pytest.mark.parametrize(
    "model",
    [
        lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
        lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=16)),
        lambda: GPTNeoXForCausalLM(
            GPTNeoXConfig(
                **tiny.SHARED,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
            )
        ),
    ],
    ids=["qwen3", "gemma2", "gpt_neox"],
)
def test_nothing_is_added_to_the_stream_unseen(model: Any) -> None:
    """With p near one every block's output is zero, so that the last states are the normed embeddings."""
    made, at = model(), Live(seed=0, example_ids=("a", "b"), lengths=(5, 5))
    almost_all = Dropout(p=1 - 1e-12, where="hidden")
    with almost_all.applied(made, at) as changed:
        outputs = changed.train()(input_ids=IDS, output_hidden_states=True).hidden_states
    last = next(m for name, m in made.named_modules() if name in ("model.norm", "gpt_neox.final_layer_norm"))
    torch.testing.assert_close(outputs[-1], last(outputs[0]))


def test_a_model_that_is_not_known_is_an_obstacle_before_and_an_error_at_the_latest() -> None:
    phi = PhiForCausalLM(PhiConfig(**SHAPE))
    with (
        pytest.raises(NoEffect, match="a phi feed its residual stream; known are gemma, "),
        HIDDEN.applied(phi, live()),
    ):
        pass
    facts = tiny.facts("llama").model_copy(update={"model_type": "phi"})
    found = HIDDEN.obstacle(host(), Setting(facts))
    assert found and "phi" in found.reason and found.way_out == "set where: embedding"
    assert EMBEDDING.obstacle(host(), Setting(facts)) is None
    assert Dropout(where="hidden").obstacle(host(), Setting(facts)) is None
    assert all(HIDDEN.obstacle(host(), Setting(tiny.facts(name))) is None for name in tiny.MODELS)
    assert set(tiny.MODELS) <= set(BLOCKS)


def test_noise_comes_first_and_what_is_dropped_has_none() -> None:
    """A dropped activation is zero, noise and all."""
    seen: list[torch.Tensor] = []
    with (
        Noise(alpha=5).applied(tiny.llama(), live()) as noised,
        EMBEDDING.applied(noised, live()) as changed,  # type: ignore[arg-type]
    ):
        changed.get_input_embeddings().register_forward_hook(lambda _, __, out: seen.append(out))
        changed.train()(input_ids=IDS)
    real = torch.cat([seen[0][0, :3], seen[0][1]])
    assert (real == 0).float().mean().item() == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weight_decay_the_other_rival_acts_under_every_optimizer(optimizer: str) -> None:
    name, norms = "transformer.h.0.attn.c_attn.weight", []
    for decay in (0.0, 0.5):
        run = tiny.run(tiny.gpt2(), Full(), optimizer=optimizer, weight_decay=decay, learning_rate=1e-2)
        norms.append(run.weights[name].norm().item())
    assert norms[1] < 0.99 * norms[0]


def test_weight_decay_spares_biases_and_norms() -> None:
    """A rate of decay that would empty a weight in one step leaves what is spared where it was."""
    run = tiny.run(tiny.gpt2(), Full(), max_steps=1, warmup_steps=0, learning_rate=1e-6, weight_decay=1e5)
    initial = dict(tiny.gpt2().named_parameters())
    for name, weight in run.weights.items():
        spared = name.endswith("bias") or ".ln_" in name
        kept = (weight - initial[name]).abs().max() < 1e-4
        assert kept if spared else weight.abs().max() < 0.95 * initial[name].abs().max()
