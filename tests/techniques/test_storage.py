"""Weights without fp32 masters: what rounding does to an update, what is left, and what the proof says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiny
from paribus.techniques import Accumulation, Fp32Master, Full, Live, Lora, NoEffect, NoMaster
from paribus.techniques.precision.formats import BF16, FORMATS, round_to
from paribus.techniques.precision.storage import Stored
from paribus.techniques.tuning.weights import digests


class One(torch.nn.Module):
    """A module with one weight, or many of the same value."""

    def __init__(self, value: float, count: int = 1) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((count,), value))


def stepped(storage: NoMaster, value: float, update: float, steps: int = 1, count: int = 1) -> Any:
    """Add an update to a weight in each step; returns the weights, what was observed, and the proof."""
    model, live = One(value, count), Live(seed=0, steps=steps)
    with storage.applied(model, live):  # type: ignore[arg-type]
        for live.step in range(steps):
            assert storage.before_step(model, live)
            with torch.no_grad():
                model.weight += update
            storage.after_step(model, live)
        found = storage._on_format(model, live)
    return model.weight.detach().clone(), live.observed["master_weights"], found


@pytest.mark.parametrize(
    ("form", "update", "left"),
    [
        ("bf16", 2.0**-10, 1.0),
        ("bf16", 2.0**-8, 1.0),  # half way: to the even neighbour
        ("bf16", 2.0**-8 * 1.01, 1 + 2.0**-7),
        ("bf16", -(2.0**-9) * 1.01, 1 - 2.0**-8),
        ("fp16", 2.0**-10, 1 + 2.0**-10),
        ("fp16", 2.0**-12, 1.0),
        ("e4m3", 0.06, 1.0),
        ("e4m3", 0.07, 1.125),
    ],
)
def test_an_update_below_half_a_step_vanishes(form: Any, update: float, left: float) -> None:
    weight, stored, _ = stepped(NoMaster(format=form), 1.0, update)
    assert weight.item() == left
    assert stored.counts[:2] == [1, int(left == 1.0)]


def test_many_vanishing_updates_move_nothing_and_stochastic_rounding_keeps_their_mean() -> None:
    nearest, counted, _ = stepped(NoMaster(), 1.0, 2.0**-10, steps=64)
    assert nearest.item() == 1.0
    assert counted.counts == [64, 64, 64]
    drawn, _, _ = stepped(NoMaster(rounding="stochastic"), 1.0, 2.0**-10, steps=64, count=20_000)
    # 64 draws of 1/8 of a step: standard error 2^-7 * sqrt(64 * 7 / 64) / sqrt(20,000) = 1.5e-4
    assert drawn.mean().item() == pytest.approx(1 + 2.0**-4, abs=5 * 1.5e-4)
    assert torch.equal(drawn, round_to(drawn, BF16))


def test_stochastic_rounding_draws_by_step_parameter_and_seed() -> None:
    storage = NoMaster(rounding="stochastic")
    values = torch.full((4000,), 1 + 2.0**-9)

    def up(live: Live, *place: str) -> torch.Tensor:
        return storage._rounded(values, live, *place) > 1

    first = up(Live(0), "a")
    assert torch.equal(first, up(Live(0), "a"))
    for other in (up(Live(0), "b"), up(Live(1), "a"), up(Live(0, step=1), "a"), up(Live(0), "a", "exp_avg")):
        assert abs((first == other).float().mean().item() - 10 / 16) < 0.04  # independent: 1/16 + 9/16
    assert abs(first.float().mean().item() - 0.25) < 0.03


@pytest.mark.parametrize("name", tiny.MODELS)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_every_weight_of_a_model_stays_a_value_of_the_format(name: str, rounding: Any) -> None:
    seen: list[float] = []

    def look(model: Any, live: Live) -> None:
        seen.append(sum((round_to(p, BF16) != p).sum().item() for p in model.parameters()))

    storage = NoMaster(rounding=rounding, optimizer_states="same")
    run = tiny.run(tiny.MODELS[name](), Full(), storage, before=look, after=look)
    assert seen == [0, 0]
    assert run.proofs[1]["weights_off_format"] == run.proofs[1]["moments_off_format"] == 0
    assert 0 < run.proofs[1]["share_vanished"] < 1


def test_the_moments_are_rounded_only_where_it_is_said() -> None:
    def off(storage: NoMaster) -> int:
        run = tiny.run(tiny.llama(), Full(), storage)
        assert run.live.optimizer is not None
        states = list(run.live.optimizer.state.values())
        kept = [s[key] for s in states for key in ("exp_avg", "exp_avg_sq")]
        return sum((round_to(m, BF16) != m).sum().item() for m in kept)

    assert off(NoMaster(optimizer_states="same")) == 0
    assert off(NoMaster()) > 10_000


def test_the_second_moment_cannot_fall_in_bf16() -> None:
    """0.999 of a value of bf16 is nearest to that value itself."""
    decayed = round_to(torch.linspace(1, 2, 129)[:-1] * 0.999, BF16)
    assert torch.equal(decayed, torch.linspace(1, 2, 129)[:-1])


def test_frozen_weights_are_rounded_while_it_is_applied_and_get_their_own_values_back() -> None:
    model = tiny.llama()
    before, seen = digests(model), dict[str, int]()

    def look(wrapped: Any, live: Live) -> None:
        frozen = [p for p in wrapped.parameters() if not p.requires_grad]
        seen["off"] = sum((round_to(p, BF16) != p).sum().item() for p in frozen)
        seen["frozen"] = len(frozen)

    run = tiny.run(model, Lora(r=2), NoMaster(), after=look)
    assert seen["off"] == 0 < seen["frozen"] == run.proofs[0]["frozen_tensors_unchanged"]
    assert digests(model) == before


def adamw(parameter: torch.nn.Parameter, **settings: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW([parameter], lr=1e-3, fused=True, **settings)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_from_equal_gradients_it_is_a_step_of_fused_adamw_in_bf16_to_the_last_bit(
    weight_decay: float,
) -> None:
    draw = torch.Generator().manual_seed(0)
    model, storage = One(0.0, 4000), NoMaster(optimizer_states="same")
    with torch.no_grad():
        model.weight.copy_(torch.randn(4000, generator=draw) * 0.02)
    real = torch.nn.Parameter(model.weight.detach().to(torch.bfloat16))
    own, live = adamw(real, weight_decay=weight_decay), Live(seed=0)
    live.optimizer = adamw(model.weight, weight_decay=weight_decay)
    with storage.applied(model, live):  # type: ignore[arg-type]
        for live.step in range(30):
            gradient = (torch.randn(4000, generator=draw) * 1e-3).to(torch.bfloat16)
            real.grad, model.weight.grad = gradient.clone(), gradient.float()
            storage.before_step(model, live)
            own.step()
            live.optimizer.step()
            storage.after_step(model, live)
            assert torch.equal(real.float(), model.weight)
    for key in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(own.state[real][key].float(), live.optimizer.state[model.weight][key])


@pytest.mark.parametrize(("name", "nearer"), [("llama", 4.0), ("gpt2", 2.0)])
def test_a_model_really_in_bf16_ends_nearer_to_it_than_to_fp32(name: str, nearer: float) -> None:
    """Eight steps on Llama: 4.1e-4 of the norm against 2.4e-3; products in bf16 are what is left."""
    real = tiny.run(tiny.MODELS[name](dtype=torch.bfloat16), Full()).weights
    storage = NoMaster(optimizer_states="same")
    emulated = tiny.run(tiny.MODELS[name](), Full(), storage, Accumulation(gradient_dtype="bfloat16"))
    exact = tiny.run(tiny.MODELS[name](), Full())

    def apart(run: tiny.Run) -> float:
        whole, other = (torch.cat([w[n].float().flatten() for n in real]) for w in (real, run.weights))
        return float((whole - other).norm() / whole.norm())

    assert apart(emulated) * nearer < apart(exact)
    equal = [(real[n].float() == emulated.weights[n]).flatten() for n in real]
    assert torch.cat(equal).float().mean() > 0.6


@pytest.mark.parametrize(
    ("dtype", "storage", "optimizer", "words"),
    [
        (torch.bfloat16, NoMaster(), "adamw", "they are stored in bfloat16"),
        (torch.float32, NoMaster(optimizer_states="same"), "sgd", "SGD keeps no moments"),
    ],
)
def test_what_changes_nothing_is_no_effect(
    dtype: torch.dtype, storage: NoMaster, optimizer: str, words: str
) -> None:
    with pytest.raises(NoEffect, match=words):
        tiny.run(tiny.llama(dtype=dtype), Full(), storage, optimizer=optimizer)


def test_a_weight_that_something_moves_afterwards_is_seen() -> None:
    def move(model: Any, live: Live) -> None:
        with torch.no_grad():
            next(model.parameters())[0, :3] += 1e-5
        with pytest.raises(NoEffect, match="3 weights off format"):
            NoMaster().proof(model, live)

    tiny.run(tiny.llama(), Full(), NoMaster(), after=move)


class Lazy(NoMaster):
    """A fault: what trains is rounded at the start alone."""

    def after_step(self, model: torch.nn.Module, live: Live) -> None:
        live.observed["master_weights"].counts = [1, 1, 1]


def test_a_storage_that_rounds_at_the_start_alone_is_caught() -> None:
    with pytest.raises(NoEffect, match="weights off format bf16"):
        tiny.run(tiny.llama(), Full(), Lazy())


def test_fp32_is_the_null_level_and_no_storage_has_a_short_name() -> None:
    assert Fp32Master().canonical() == {"kind": "fp32"}
    assert NoMaster().label == "none"
    assert NoMaster(rounding="stochastic", optimizer_states="same").label == "none stochastic same"
    assert set(FORMATS) > {"bf16", "fp16", "e4m3", "e5m2"}
    assert Stored().counts == [0, 0, 0]
