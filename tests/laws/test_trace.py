"""Law: a technique leaves no trace, also when training fails under it; frozen parameters do not move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch

import tiny
from paribus.techniques import (
    Accumulation,
    Bf16,
    BitFit,
    Fp8,
    Fp16,
    Fp32,
    Full,
    Live,
    Lora,
    NoEffect,
    Noise,
    Technique,
)
from paribus.techniques.tuning import weights
from paribus.train.reading import Reader

EVERY = [
    Full(),
    Lora(r=4),
    Lora(r=4, target_modules=("q_proj", "v_proj")),
    Noise(alpha=5),
    Accumulation(steps=2),
    Fp32(),
    Bf16(compute="emulated"),
    Bf16(),
    Fp16(compute="emulated"),
    Fp8(compute="emulated"),
]


def state(model: torch.nn.Module) -> dict[str, Any]:
    """Describe all of a model that a technique could change."""
    return {
        path: (
            type(module),
            sorted(vars(module)),
            {name: (id(p), p.requires_grad) for name, p in module._parameters.items() if p is not None},
            len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks),
        )
        for path, module in model.named_modules()
    }


class Broken(RuntimeError):
    """What stops the training under test."""


def traces(*techniques: Technique) -> bool:
    """Say whether anything is left of techniques after training under them failed."""
    model = tiny.llama()
    before = state(model)

    def fail(step: int, epoch: float) -> None:
        if step == 2:
            raise Broken

    with pytest.raises(Broken):
        tiny.run(model, *techniques, readers=[Reader(1, fail)])
    return state(model) != before


@pytest.mark.parametrize(
    "technique", EVERY, ids=lambda technique: f"{type(technique).__name__}-{technique.label}"
)
def test_no_trace_is_left_after_a_failure(technique: Technique) -> None:
    assert not traces(technique) if technique in EVERY[:3] else not traces(Full(), technique)


def test_no_trace_is_left_of_several() -> None:
    assert not traces(Lora(r=4), Fp8(compute="emulated"), Noise(alpha=5), Accumulation(steps=2))


class Forgetful(Noise):
    """A planted fault: the hook is removed at a good end only."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        hook = model.get_input_embeddings().register_forward_hook(lambda *_: None)
        yield model
        hook.remove()


def test_the_law_catches_a_hook_left_behind() -> None:
    assert traces(Full(), Forgetful(alpha=5))


def test_a_wrapping_that_stops_half_way_is_undone() -> None:
    """A norm is no linear layer: peft refuses it after it has wrapped the first ones."""
    model = tiny.llama()
    before = state(model)
    with pytest.raises(NoEffect, match="not supported"), ExitStack() as stack:
        stack.enter_context(Lora(target_modules=("q_proj", "norm")).applied(model, Live(seed=0)))
    assert state(model) == before


@pytest.mark.parametrize(
    ("model", "tuning", "moves"),
    [
        (tiny.llama, Full(), lambda name: True),
        (tiny.llama, Lora(r=4), lambda name: ".lora_" in name),
        (tiny.llama, Lora(r=4, target_modules=("q_proj",)), lambda name: ".q_proj.lora_" in name),
        (tiny.gpt2, BitFit(), lambda name: name.endswith(".bias")),
    ],
    ids=["full", "lora", "lora-q", "bitfit"],
)
def test_what_trains_moves_and_nothing_else(model: Any, tuning: Technique, moves: Any) -> None:
    run = tiny.run(model(), tuning, max_steps=3)
    before, after = run.live.observed["initial_weights"], run.live.observed["final_weights"]
    assert {name for name in after if after[name] != before[name]} == {name for name in after if moves(name)}
    proof = run.proofs[0]
    assert proof["tensors_moved"] == sum(map(moves, after))
    assert proof["frozen_tensors_unchanged"] == len(after) - sum(map(moves, after))
    assert proof["trainable_parameters"] == sum(weight.numel() for weight in run.weights.values())
    assert proof["trainable_share"] == proof["trainable_parameters"] / proof["total_parameters"]


class Meddling(BitFit):
    """A planted fault: a frozen weight is changed while the biases train."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        with super().applied(model, live) as changed:
            with torch.no_grad():
                model.transformer.wpe.weight[0, 0] += 1
            yield changed


def test_the_law_catches_a_frozen_weight_that_moves() -> None:
    with pytest.raises(RuntimeError, match=r"frozen parameters moved under bitfit: transformer\.wpe\.weight"):
        tiny.run(tiny.gpt2(), Meddling(), max_steps=1)


class Idle(Full):
    """A planted fault: everything should train and nothing does."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        weights.remember(model, live)
        yield model


def test_tuning_without_effect_is_told() -> None:
    live = Live(seed=0)
    model = tiny.llama()
    with Idle().applied(model, live), pytest.raises(NoEffect, match="full: no parameter moved"):
        Idle().proof(model, live)
