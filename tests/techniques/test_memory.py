"""Checkpointing: the same gradients to the last bit, the right layers run again, what is kept and paid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tiny
from paribus.machine import host
from paribus.techniques import (
    Dropout,
    EveryCheckpointing,
    Full,
    LayerCheckpointing,
    Live,
    Lora,
    NoCheckpointing,
    NoEffect,
    Noise,
    SequentialCheckpointing,
    Setting,
    Technique,
)

SCHEMES: dict[str, Technique] = {
    "layers": LayerCheckpointing(),
    "layers reentrant": LayerCheckpointing(use_reentrant=True),
    "every": EveryCheckpointing(),
    "every reentrant": EveryCheckpointing(use_reentrant=True),
    "sequential": SequentialCheckpointing(),
    "sequential reentrant": SequentialCheckpointing(use_reentrant=True),
}
IDS = torch.arange(3, 27).reshape(2, 12)


def deep(layers: int) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**tiny.SHARED, **{**tiny.SHAPE, "num_hidden_layers": layers}))


@contextmanager
def applied(layers: int, scheme: Technique, tuning: Technique | None = None) -> Iterator[tuple[Any, Live]]:
    live, model = Live(seed=0), deep(layers)
    with (tuning or Full()).applied(model, live) as wrapped, scheme.applied(wrapped, live) as model:  # type: ignore[arg-type]
        yield model.train(), live


def ran_again(layers: int, scheme: Technique) -> list[int]:
    """Return how often each layer's attention ran more than once in a step."""
    runs = [0] * layers
    with applied(layers, scheme) as (model, _):
        for index, layer in enumerate(model.model.layers):
            layer.self_attn.register_forward_pre_hook(lambda *_, i=index: runs.__setitem__(i, runs[i] + 1))
        model(input_ids=IDS, use_cache=False).logits.sum().backward()
    return [count - 1 for count in runs]


def same(one: tiny.Run, other: tiny.Run) -> bool:
    equal = all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    return one.trained.curve == other.trained.curve and equal


NOISY = (Noise(alpha=5), Dropout(p=0.1, where="hidden"))


@pytest.fixture(scope="module")
def kept() -> dict[str, tiny.Run]:
    """Training without checkpointing, noise and dropout on."""
    return {
        **{name: tiny.run(make(), Full(), *NOISY) for name, make in tiny.MODELS.items()},
        "lora": tiny.run(tiny.llama(), Lora(r=4, lora_dropout=0.2), *NOISY),
    }


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        *(("llama", scheme) for scheme in SCHEMES),
        *((name, scheme) for name in list(tiny.MODELS)[1:] for scheme in ("layers reentrant", "sequential")),
    ],
)
def test_training_is_the_same_to_the_last_bit(kept: dict[str, tiny.Run], name: str, scheme: str) -> None:
    run = tiny.run(tiny.MODELS[name](), Full(), SCHEMES[scheme], *NOISY)
    assert same(run, kept[name])
    proof = run.proofs[1]
    chosen = 2 if "layers" in scheme else 1
    assert (proof["layers"], proof["layers_checkpointed"]) == (2, chosen)
    assert proof["layer_forwards"] == proof["layer_forwards_again"] == 8 * chosen
    assert proof["checkpoint_bytes"] == chosen * 8 * 14 * 32 * 4  # rows, padded length, width, bytes


@pytest.mark.parametrize("scheme", ["layers", "every reentrant", "sequential reentrant"])
def test_a_frozen_embedding_still_lets_gradients_through(kept: dict[str, tiny.Run], scheme: str) -> None:
    run = tiny.run(tiny.llama(), Lora(r=4, lora_dropout=0.2), SCHEMES[scheme], *NOISY)
    assert same(run, kept["lora"])
    assert run.proofs[0]["tensors_moved"] == len(run.weights)


def test_without_a_gradient_at_the_first_layer_nothing_would_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault is what reentrant checkpointing does to adapters when it is left to itself."""
    monkeypatch.setattr("paribus.techniques.memory._with_gradient", lambda *_: None)
    with (
        pytest.warns(UserWarning, match="requires_grad"),
        pytest.raises(RuntimeError, match="does not require"),
    ):
        tiny.run(tiny.llama(), Lora(r=4), LayerCheckpointing(use_reentrant=True))


class Counting(Dropout):
    """A planted fault: what is dropped depends on how often the place has been reached."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[torch.nn.Module]:
        calls = 0

        def drop(module: torch.nn.Module, _: Any, output: torch.Tensor) -> Any:
            nonlocal calls
            calls += 1
            return output * (1 + 1e-3 * calls) if module.training else None

        handle = model.model.layers[0].input_layernorm.register_forward_hook(drop)
        try:
            yield model
        finally:
            handle.remove()

    def proof(self, model: Any, live: Live) -> dict[str, Any]:
        return {}


def test_the_law_catches_a_draw_that_differs_in_the_second_pass() -> None:
    runs = [
        tiny.run(tiny.llama(), Full(), one, Counting()) for one in (NoCheckpointing(), LayerCheckpointing())
    ]
    assert not same(*runs)


@pytest.mark.parametrize(
    ("scheme", "again"),
    [
        (LayerCheckpointing(), [1, 1, 1, 1, 1]),
        (EveryCheckpointing(), [1, 0, 1, 0, 1]),
        (EveryCheckpointing(every_n_layers=3), [1, 0, 0, 1, 0]),
        (SequentialCheckpointing(), [1, 1, 0, 0, 0]),
        (SequentialCheckpointing(segments=5), [1, 1, 1, 1, 0]),
    ],
    ids=lambda one: getattr(one, "label", ""),
)
def test_the_chosen_layers_run_again_and_no_other(scheme: Technique, again: list[int]) -> None:
    assert ran_again(5, scheme) == again


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scoring_is_left_alone_and_nothing_stays_behind(scheme: str) -> None:
    model = deep(3)
    expected = model.eval()(input_ids=IDS).logits
    before = {path: (dict(vars(one)), len(one._forward_hooks)) for path, one in model.named_modules()}
    live = Live(seed=0)
    with pytest.raises(ZeroDivisionError), SCHEMES[scheme].applied(model, live):
        assert torch.equal(model(input_ids=IDS).logits, expected)
        model.train()(input_ids=IDS, use_cache=False)
        model.eval()
        raise ZeroDivisionError
    after = {path: (dict(vars(one)), len(one._forward_hooks)) for path, one in model.named_modules()}
    assert {path: (set(own), hooks) for path, (own, hooks) in before.items()} == {
        path: (set(own), hooks) for path, (own, hooks) in after.items()
    }
    assert torch.equal(model(input_ids=IDS).logits, expected)
    with pytest.raises(NoEffect, match="no layer was computed again"):
        SCHEMES[scheme].proof(model, live)


def test_more_segments_than_layers_stand_in_the_way() -> None:
    setting = Setting(tiny.facts("llama"))
    assert SequentialCheckpointing(segments=2).obstacle(host(), setting) is None
    found = SequentialCheckpointing(segments=3).obstacle(host(), setting)
    assert found is not None
    assert found.way_out == "set segments: 2 or less"
    with (
        pytest.raises(NoEffect, match="2 decoder layers"),
        SequentialCheckpointing(segments=3).applied(tiny.llama(), Live(seed=0)),
    ):
        pass


def test_layers_that_a_model_skips_at_random_all_run_in_training() -> None:
    def skipping() -> Any:
        model = tiny.opt()
        model.model.decoder.layerdrop = 0.9
        return model

    plain = tiny.run(tiny.opt(), Full())
    kept, again = (tiny.run(skipping(), Full(), *more) for more in ((), (LayerCheckpointing(),)))
    assert kept.losses == again.losses == plain.losses
    assert "dropout (0.1, 0.9) was off" in kept.trained.warnings[0]
