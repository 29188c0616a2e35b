"""AdaLoRA: ranks really fall to their budget, on schedule, alike for every split, and survive saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from weight_space import Found, inputs_and_outputs, logits, split_difference, start_of

import tiny
from paribus.techniques import AdaLora, Bf16, Live, NoEffect

SMALL = AdaLora(init_r=6, target_r=2, tinit=2, tfinal=3, deltaT=2)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_start_reload_merge_and_base(name: str, tmp_path: Path) -> None:
    found = Found(name, SMALL, tmp_path, learning_rate=1e-2)
    found.check()
    layers = inputs_and_outputs(name)
    assert found.proof["trainable_parameters"] == 6 * sum(map(sum, layers)) + 6 * len(layers)
    assert found.proof["total_rank"] == {
        "start": 6 * len(layers),
        "end": 2 * len(layers),
        "budget": 2 * len(layers),
    }
    ranks = [int(rank) for listed in found.proof["ranks"].values() for rank in listed.split()]
    assert len(ranks) == len(layers)
    assert sum(ranks) == 2 * len(layers)
    assert len(set(ranks)) > 1  # some layers kept more than others
    assert found.proof["scaling"] == 16 / 6


def test_ranks_fall_only_between_tinit_and_tfinal() -> None:
    run = tiny.run(tiny.llama(), AdaLora(init_r=6, target_r=2, tinit=2, tfinal=3, deltaT=1), max_steps=10)
    budgets = run.live.observed["adalora"]["budgets"]
    assert list(budgets) == [3, 4, 5, 6, 7]
    goal, start = 2 * 14, 6 * 14
    cubic = [int((start - goal) * (1 - (step - 2) / 5) ** 3 + goal) for step in budgets]
    assert list(budgets.values()) == cubic
    assert cubic[-1] == goal


def test_shares_count_steps_of_the_run() -> None:
    assert AdaLora(tinit=0.1, tfinal=0.3).schedule(100) == (10, 30)
    assert AdaLora(tinit=3, tfinal=0).schedule(100) == (3, 0)
    assert AdaLora(tinit=0.29, tfinal=0.3).schedule(100) == (29, 30)
    assert AdaLora().schedule(2) == (0, 0)


@pytest.mark.parametrize(("tinit", "tfinal", "steps"), [(5, 5, 10), (0, 9, 10), (0.5, 0.5, 8), (0.1, 0.3, 1)])
def test_a_schedule_without_room_is_told(tinit: float, tfinal: float, steps: int) -> None:
    adalora = AdaLora(tinit=tinit, tfinal=tfinal)
    with pytest.raises(NoEffect, match="no step is left for ranks to fall") as caught:
        adalora.applied(tiny.llama(), Live(seed=0, steps=steps)).__enter__()
    assert "lower tinit and tfinal" in caught.value.way_out


def test_impossible_settings_are_errors() -> None:
    with pytest.raises(ValidationError, match="target_r 8 must be less than init_r 8"):
        AdaLora(init_r=8, target_r=8)
    with pytest.raises(ValidationError, match=r"tinit 2\.5 is neither a share below 1 nor a whole number"):
        AdaLora(tinit=2.5)


def test_a_split_of_the_batch_does_not_matter() -> None:
    assert split_difference("llama", SMALL) < 1e-8


def test_it_runs_under_emulated_precision() -> None:
    """Its layers add to what the base's layers give in place."""
    proofs = tiny.run(tiny.llama(), SMALL, Bf16(compute="emulated")).proofs
    assert proofs[0]["total_rank"]["end"] == 28


class Doubled(AdaLora):
    """A planted fault: the regularisation is added for each micro-batch, not each step."""

    def penalty(self, model: torch.nn.Module, live: Live) -> torch.Tensor | None:
        given = super().penalty(model, live)
        return None if given is None else given * live.window


def test_the_law_catches_a_regularisation_for_each_micro_batch() -> None:
    assert split_difference("llama", Doubled(**SMALL.model_dump()), steps=8) > 1e-5


def test_the_regularisation_is_the_distance_from_orthonormal_rows_and_columns() -> None:
    with SMALL.applied(tiny.llama(), Live(seed=0, steps=10)) as model:
        found = SMALL.penalty(model, Live(seed=0))
        named = {n: p.detach() for n, p in model.named_parameters() if ".lora_A." in n or ".lora_B." in n}
        gaps = [(p @ p.T if ".lora_A." in n else p.T @ p) - torch.eye(6) for n, p in named.items()]
    assert len(gaps) == 28
    expected = 0.5 * sum(float(gap.norm()) for gap in gaps) / 28
    assert found is not None
    assert found.item() == pytest.approx(expected, rel=1e-5)
    without = AdaLora(orth_reg_weight=0)
    assert without.penalty(torch.nn.Module(), Live(seed=0)) is None


class Idle(AdaLora):
    """A planted fault: ranks are never updated, as under a plain Trainer."""

    def after_step(self, model: torch.nn.Module, live: Live) -> None:
        """Do nothing."""


def test_ranks_that_never_fall_are_told() -> None:
    with pytest.raises(NoEffect, match="no rank fell"):
        tiny.run(tiny.llama(), Idle())


def test_it_goes_on_as_if_nothing_had_been_between(tmp_path: Path) -> None:
    """Importance and ranks are handed over in the midst of falling: the next allocation is the same."""
    kept: dict[str, Any] = {}

    def hand_over(model: Any, live: Live) -> None:
        SMALL.save(model, tmp_path)
        kept["state"] = SMALL.state(model, live)
        kept["grads"] = {n: torch.rand(p.shape) for n, p in model.named_parameters() if p.requires_grad}
        kept["next"] = _stepped(model, kept["grads"], live)

    run = tiny.run(tiny.llama(), SMALL, max_steps=8, after=hand_over, proofs=False, trainer_class=_Half)
    assert run.live.step == 3
    live = Live(seed=0, steps=8, step=3)
    with SMALL.applied(tiny.llama(), live) as model:
        SMALL.load(model, tmp_path)
        SMALL.restore(model, live, kept["state"])
        assert torch.equal(_stepped(model, kept["grads"], live), kept["next"])


def _stepped(model: Any, gradients: dict[str, torch.Tensor], live: Live) -> torch.Tensor:
    """Share out ranks once more, of given gradients."""
    for name, parameter in model.named_parameters():
        if name in gradients:
            parameter.grad = gradients[name]
    live.step += 1
    SMALL.after_step(model, live)
    live.step -= 1
    return logits(model)


class _Half(tiny.AblationTrainer):
    """Stops after four steps of eight."""

    def log(self, *args: Any, **kwargs: Any) -> None:
        super().log(*args, **kwargs)
        self.control.should_training_stop = self.state.global_step >= 4


def test_a_start_depends_on_layer_names_and_seed_alone() -> None:
    every = start_of(SMALL, tiny.llama())
    some = start_of(SMALL.model_copy(update={"target_modules": ("v_proj",)}), tiny.llama())
    assert all(torch.equal(every[name], value) for name, value in some.items())
    assert len(some) == 2 * 3
    assert all(value.abs().max() == 0 for name, value in every.items() if "lora_E" in name)
