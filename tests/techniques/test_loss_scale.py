"""The scale of fp16's gradients: how it moves, what it saves, and what becomes of a step that overflows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import TrainerCallback

import tiny
from paribus.machine import Machine
from paribus.techniques import Fp16, Full, Live, Setting, Technique
from paribus.techniques.precision.formats import FP16
from paribus.techniques.precision.loss_scale import LossScale
from paribus.techniques.precision.scaling import scaled_round
from paribus.techniques.precision.tally import Tally
from paribus.train.checkpoint import Checkpoints
from paribus.train.reading import Reader
from paribus.train.trainer import AblationTrainer

GROWING = Fp16(compute="emulated", loss_scale="dynamic", growth_interval=1)
"""Doubles at every step, so that some of twelve overflow."""


@pytest.mark.parametrize("interval", [1, 3])
def test_a_dynamic_scale_is_that_of_gradscaler(interval: int) -> None:
    """Forty steps of which some overflow, beside torch's own scaler."""
    scaler = torch.amp.GradScaler("cpu", growth_interval=interval)
    ours = LossScale(65536.0, interval)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    draw, skipped = torch.Generator().manual_seed(0), 0
    for _ in range(40):
        overflows = torch.rand(1, generator=draw).item() < 0.3
        scaler.scale((weight * (torch.inf if overflows else 1.0)).sum()).backward()
        before = weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        made = ours.step(_holding(weight))
        assert made == (not overflows) == (not torch.equal(before, weight))
        assert scaler.get_scale() == ours.scale
        skipped += overflows
        optimizer.zero_grad()
    assert ours.skipped == skipped > 5
    assert ours.worst == 1.0
    assert ours.least < 65536.0 or interval == 1


def _holding(weight: torch.nn.Parameter) -> torch.nn.Module:
    model = torch.nn.Module()
    model.weight = weight
    return model


def test_a_fixed_scale_looks_at_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), torch.inf)
    assert LossScale(4096.0).step(_holding(weight))


def test_a_scale_saves_small_gradients_and_loses_large_ones() -> None:
    """At 1024: 2^-30 is flushed without, 2^-36 with; 100 overflows with and not without; 1 is safe."""
    exact = torch.tensor([2.0**-30, 2.0**-36, 100.0, 1.0, 0.0])
    tally = Tally(loss_scale=1024.0)
    scaling = tally.scaling("gradients", 4096.0)
    tally.measure("gradients", 0, FP16, exact, scaled_round(exact, FP16, scaling))
    found = LossScale(1024.0).evidence(tally)
    shares = [found[f"share_{what}"] for what in ("overflowed", "flushed_to_zero", "flushed_without_scale")]
    assert shares == [0.2, 0.2, 0.4]


class Seen(AblationTrainer):
    """Keeps, before and after each optimizer step, a copy of the weights and of the optimizer's state."""

    around: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Seen.around = []
        self.add_callback(_Look(self))


class _Look(TrainerCallback):
    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        Seen.around.append([_copied(self.trainer)])

    def on_step_end(self, *_: Any, **__: Any) -> None:
        Seen.around[-1].append(_copied(self.trainer))


def _copied(trainer: Any) -> list[torch.Tensor]:
    states = trainer.live.optimizer.state.values()
    moments = [value for state in states for value in state.values()]
    return [t.detach().clone() for t in (*trainer.model.parameters(), *moments)]


def test_a_step_that_overflows_changes_neither_weights_nor_optimizer_nor_schedule() -> None:
    run = tiny.run(
        tiny.llama(), Full(), GROWING, max_steps=16, warmup_steps=0, weight_decay=0.1, trainer_class=Seen
    )
    curve, proof = run.trained.curve, run.proofs[1]["loss_scale"]
    skipped = [row["grad_norm"] is None for row in curve]
    assert proof["skipped_steps"] == sum(skipped) > 2
    assert proof["times_doubled"] == 16 - sum(skipped)
    assert 0 < proof["share_not_finite_at_worst"] <= 1
    assert proof["at_the_end"] == 65536.0 * 2.0 ** (16 - 2 * sum(skipped))
    assert f"skipped {sum(skipped)} optimizer steps" in run.trained.warnings[0]
    for left_out, (before, after) in zip(skipped, Seen.around, strict=True):
        same = len(before) == len(after) and all(map(torch.equal, before, after))
        assert same == left_out
    rates = [row["learning_rate"] for row in curve]
    assert [later == rate for rate, later in pairwise(rates)] == skipped[:-1]
    assert all(row["loss"] > 0 for row in curve)


def test_a_fixed_scale_that_overflows_still_ends_as_diverged() -> None:
    run = tiny.run(tiny.llama(), Full(), Fp16(compute="emulated", loss_scale=2.0**40), proofs=False)
    assert run.trained.diverged is not None
    assert run.trained.diverged.quantity == "grad_norm"


class Reckless(Fp16):
    """A fault: the scale sees the overflow and the step is made all the same."""

    def before_step(self, model: torch.nn.Module, live: Live) -> bool:
        super().before_step(model, live)
        return True


def test_a_step_that_should_have_been_left_out_is_seen() -> None:
    fault = Reckless(compute="emulated", loss_scale="dynamic", growth_interval=1)
    run = tiny.run(tiny.llama(), Full(), fault, max_steps=16, proofs=False)
    assert run.trained.diverged is not None
    assert tiny.run(tiny.llama(), Full(), GROWING, max_steps=16).trained.diverged is None


def test_the_scale_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Stopped after ten steps, some skipped, it ends with the scale, curve and weights of the whole run."""

    def ended(readers: Any = (), checkpoints: Any = None) -> tiny.Run:
        return tiny.run(tiny.llama(), Full(), GROWING, max_steps=16, readers=readers, checkpoints=checkpoints)

    def fail(step: int, epoch: float) -> None:
        if step == 10:
            raise KeyboardInterrupt

    whole = ended()
    with pytest.raises(KeyboardInterrupt):
        ended([Reader(5, fail)], Checkpoints(tmp_path, 7, key="one"))
    resumed = ended([Reader(5, lambda step, epoch: None)], Checkpoints(tmp_path, 7, key="one"))
    assert resumed.trained.resolved["resumed"]["at_steps"] == [7]
    assert resumed.trained.curve == whole.trained.curve
    assert resumed.proofs[1]["loss_scale"] == whole.proofs[1]["loss_scale"]
    assert tiny.distance(whole, resumed) == 0.0


@pytest.mark.parametrize("beside", [{}, {"outputs": True, "attention": True, "residual": True}])
def test_powers_of_two_give_one_gradient_while_nothing_is_lost(beside: dict[str, Any]) -> None:
    """Down to where numbers are flushed a scale only moves exponents: 4096 and dynamic 65536 end alike."""
    fixed = tiny.run(tiny.llama(), Full(), Fp16(compute="emulated", **beside), max_steps=4)
    moving = tiny.run(
        tiny.llama(), Full(), Fp16(compute="emulated", loss_scale="dynamic", **beside), max_steps=4
    )
    unscaled = tiny.run(
        tiny.llama(), Full(), Fp16(compute="emulated", loss_scale="none", **beside), max_steps=4
    )
    assert tiny.distance(fixed, moving) < 1e-5
    proofs = [run.proofs[1]["loss_scale"] for run in (unscaled, fixed, moving)]
    flushed = [proof["share_flushed_to_zero"] for proof in proofs]
    if beside:  # what reaches the products has been through the same rounding already
        assert flushed == [0, 0, 0]
    else:
        assert flushed[0] > flushed[1] >= flushed[2] > 0
        assert proofs[0]["share_flushed_without_scale"] == flushed[0]


def test_the_scale_reaches_what_is_rounded_around_the_products() -> None:
    """At 2^60 outputs, attention and blocks alone would overflow: so they all read the scale of now."""

    def diverges(**beside: bool) -> bool:
        gradients: Any = {"gradients": "fp32"}  # the products of linear layers round none
        level = Fp16(compute="emulated", loss_scale=2.0**60, roles=gradients, **beside)
        return tiny.run(tiny.llama(), Full(), level, max_steps=2, proofs=False).trained.diverged is not None

    assert not diverges()
    assert diverges(outputs=True)
    assert diverges(residual=True)


@pytest.mark.parametrize(
    ("settings", "label", "canonical"),
    [
        ({}, "fp16 emulated", {}),
        ({"loss_scale": 4096, "growth_interval": 7}, "fp16 emulated growth_interval=7", {}),
        ({"loss_scale": 1024}, "fp16 emulated loss_scale=1024", {"loss_scale": 1024}),
        ({"loss_scale": "none"}, "fp16 emulated unscaled", {"loss_scale": "none"}),
        ({"loss_scale": "dynamic"}, "fp16 emulated dynamic scale", {"loss_scale": "dynamic"}),
        (
            {"loss_scale": "dynamic", "growth_interval": 5},
            "fp16 emulated growth_interval=5 dynamic scale",
            {"loss_scale": "dynamic", "growth_interval": 5},
        ),
    ],
)
def test_identities_and_names(settings: Any, label: str, canonical: Any) -> None:
    level = Fp16.model_validate({"kind": "fp16", "compute": "emulated", **settings})
    assert level.label == label
    assert level.canonical() == {"kind": "fp16", "compute": "emulated", **canonical}


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_scale": 0},
        {"loss_scale": "static"},
        {"loss_scale": "dynamic", "growth_interval": 0},
        {"loss_scale": "dynamic", "roles": {"gradients": {"scaling": "tensor"}}},
    ],
)
def test_what_is_no_scale_is_an_error(settings: Any) -> None:
    with pytest.raises(ValidationError):
        Fp16.model_validate({"compute": "emulated", **settings})


def test_natively_the_scale_is_the_scalers() -> None:
    device = Machine(device="cuda", name="a GPU", memory_bytes=1, cores=1, compute_capability=(8, 0))
    setting = Setting(tiny.facts("llama"))
    assert Fp16().obstacle(device, setting) is None
    found = Fp16(loss_scale="dynamic").obstacle(device, setting)
    assert found is not None
    assert "GradScaler" in found.reason


class Refusing(Technique):
    """Leaves out every other step; says nothing else."""

    kind: str = "refusing"

    def before_step(self, model: torch.nn.Module, live: Live) -> bool:
        return live.step % 2 == 0

    def after_step(self, model: torch.nn.Module, live: Live) -> None:
        live.observed.setdefault("made", []).append(live.step)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor"])
def test_any_technique_can_leave_a_step_out_and_none_follows_it(optimizer: str) -> None:
    settings = {"optimizer": optimizer, "learning_rate": 0.1, "warmup_steps": 0}
    run = tiny.run(tiny.llama(), Full(), Refusing(), **settings)
    assert [row["grad_norm"] is None for row in run.trained.curve] == [False, True] * 4
    assert run.live.observed["made"] == [0, 2, 4, 6]
    norms = [row["parameter_norm"] for row in run.trained.curve]
    assert [one == other for one, other in pairwise(norms)] == [True, False] * 3 + [True]
