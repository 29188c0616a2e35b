"""VeRA: the shared matrices are the trial's, stay, are saved; two vectors a layer train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from weight_space import Found, inputs_and_outputs, split_difference

import tiny
from paribus.techniques import Live, Vera


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_start_reload_merge_and_base(name: str, tmp_path: Path) -> None:
    found = Found(name, Vera(r=16, vera_dropout=0.1), tmp_path, learning_rate=1e-2)
    found.check()
    layers = inputs_and_outputs(name)
    assert found.proof["trainable_parameters"] == sum(16 + out for _, out in layers)
    largest = [max(inputs for inputs, _ in layers), max(outputs for _, outputs in layers)]
    assert found.proof["shared_matrices"] == [[16, largest[0]], [largest[1], 16]]
    assert found.proof["largest_b"] > 0.01


def shared(vera: Vera, seed: int = 0) -> torch.Tensor:
    with vera.applied(tiny.llama(), Live(seed=seed)) as model:
        base: Any = model.base_model
        return torch.cat([base.vera_A["default"].flatten(), base.vera_B["default"].flatten()]).clone()


def test_the_shared_matrices_are_drawn_from_the_seed_alone() -> None:
    one = shared(Vera(r=8))
    torch.rand(7)
    assert torch.equal(one, shared(Vera(r=8)))
    assert not torch.equal(one, shared(Vera(r=8), seed=1))


def test_the_shared_matrices_are_saved_with_the_adapter(tmp_path: Path) -> None:
    """A model that drew others says the same after loading."""
    found = Found("llama", Vera(r=8), tmp_path, learning_rate=1e-2)
    with Vera(r=8).applied(tiny.llama(), Live(seed=5)) as other:
        Vera(r=8).load(other, tmp_path)
        from weight_space import logits

        assert torch.equal(logits(other), found.end)


@pytest.mark.parametrize("name", ["llama", "opt"])
def test_a_split_of_the_batch_does_not_matter(name: str) -> None:
    assert split_difference(name, Vera(r=16, vera_dropout=0.1)) < 1e-8


def test_matrices_that_move_are_a_fault() -> None:
    def meddle(model: Any, live: Live) -> None:
        model.base_model.vera_A["default"][0, 0] += 1

    with pytest.raises(RuntimeError, match="the shared matrices of vera moved"):
        tiny.run(tiny.llama(), Vera(r=8), before=meddle, max_steps=2)


def test_d_starts_where_told() -> None:
    with Vera(r=8, d_initial=0.3).applied(tiny.llama(), Live(seed=0)) as model:
        starts = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert all(torch.all(p == 0.3) for name, p in starts.items() if "lambda_d" in name)
    assert all(torch.all(p == 0) for name, p in starts.items() if "lambda_b" in name)
