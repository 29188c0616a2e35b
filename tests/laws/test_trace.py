"""Law: a technique leaves no trace; frozen parameters do not move. What `test_laws` does not ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from cases import Case
from observing import state

import tiny
from laws import trace
from paribus.techniques import Bf16, BitFit, Full, Live, Lora, NoEffect, Technique
from paribus.techniques.tuning import weights


def test_no_trace_is_left_of_autocast() -> None:
    """Planning refuses native bf16 on a CPU; what accelerate wraps around a model comes off all the same."""
    assert trace(Case("native", {"precision": Bf16()}), tiny.llama, thorough=False) == 0


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
