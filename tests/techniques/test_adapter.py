"""Bottleneck adapters: they start at the base, sit where their papers put them, and go without a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

import tiny
from paribus.machine import Machine
from paribus.techniques import Accumulation, Adapter, Live, Setting
from paribus.techniques.tuning.bottleneck import adapters

CPU = Machine(name="a CPU", memory_bytes=1, cores=1)
PLACEMENTS = ("houlsby", "pfeiffer", "parallel")
IDS = torch.arange(3, 15).unsqueeze(0)
every_model = pytest.mark.parametrize("name", tiny.MODELS)
every_placement = pytest.mark.parametrize("placement", PLACEMENTS)


def state(model: Any) -> Any:
    return (
        [id(module) for module in model.modules()],
        [(name, id(p), p.requires_grad) for name, p in model.named_parameters()],
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
    )


@every_model
@every_placement
def test_training_starts_at_the_base_and_leaves_no_trace(name: str, placement: Any) -> None:
    model = tiny.MODELS[name]().eval()
    exact, before = model(input_ids=IDS).logits, state(model)
    with Adapter(placement=placement, bottleneck=4).applied(model, Live(seed=0)) as adapted:
        assert torch.equal(adapted(input_ids=IDS).logits, exact)
        assert len(adapters(adapted)) == (4 if placement == "houlsby" else 2)
        with torch.no_grad():
            adapters(adapted)[-1].up.weight.fill_(0.1)
        assert not torch.equal(adapted(input_ids=IDS).logits, exact)
        assert Adapter().merged(adapted) is None
    assert state(model) == before
    assert torch.equal(model(input_ids=IDS).logits, exact)


@every_model
@every_placement
def test_the_count_is_that_of_the_formula(name: str, placement: Any) -> None:
    """n (2dm + m + d) with width d = 32, bottleneck m = 5 and n blocks, and all of it moves."""
    proof = tiny.run(tiny.MODELS[name](), Adapter(placement=placement, bottleneck=5), max_steps=3).proofs[0]
    blocks = 4 if placement == "houlsby" else 2
    assert proof["trainable_parameters"] == blocks * (2 * 32 * 5 + 5 + 32)
    assert proof["blocks_adapted"] == blocks
    assert proof["bottleneck"] == 5
    assert proof["tensors_unmoved"] == []


def with_update(placement: Any, scaling: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a Llama's last feed-forward block: its input, its output and what an adapter adds to it."""
    model = tiny.llama(dtype=torch.float64).eval()
    block = model.model.layers[1].mlp
    seen: dict[str, torch.Tensor] = {}
    outer = Adapter(placement=placement, bottleneck=4, scaling=scaling)
    block.register_forward_hook(lambda _, args, out: seen.update(x=args[0], plain=out))
    with outer.applied(model, Live(seed=0)):
        block.register_forward_hook(lambda _, __, out: seen.update(adapted=out))
        adapter = adapters(block)[0]
        with torch.no_grad():
            adapter.up.weight.copy_(torch.randn(32, 4, generator=torch.Generator().manual_seed(0)))
            adapter.up.bias.fill_(0.5)
            model(input_ids=IDS)
            read = seen["x"] if placement == "parallel" else seen["plain"]
            down = torch.relu(read @ adapter.down.weight.T + adapter.down.bias)
            wanted = scaling * (down @ adapter.up.weight.T + adapter.up.bias)
    return seen["adapted"] - seen["plain"], wanted, read


@every_placement
def test_what_is_added_is_the_papers_formula(placement: Any) -> None:
    for scaling in (1.0, 4.0):
        added, wanted, _ = with_update(placement, scaling)
        assert wanted.abs().max() > 0.1
        assert torch.allclose(added, wanted, atol=1e-12)


def test_parallel_reads_another_place_than_behind() -> None:
    """The planted fault: one placement taken for the other."""
    added, _, _ = with_update("parallel")
    _, wanted, _ = with_update("pfeiffer")
    assert not torch.allclose(added, wanted, atol=1e-3)


def test_an_adapter_starts_the_same_whatever_else_is_adapted() -> None:
    def start(placement: Any, seed: int = 0) -> dict[str, torch.Tensor]:
        with Adapter(placement=placement).applied(tiny.llama(), Live(seed=seed)) as model:
            return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}

    every, some, other = start("houlsby"), start("pfeiffer"), start("houlsby", seed=1)
    assert len(every) == 2 * len(some)
    assert all(torch.equal(every[name], value) for name, value in some.items())
    down = [name for name in every if name.endswith("down.weight")]
    assert not any(torch.equal(every[name], other[name]) for name in down)
    assert len({every[name].sum().item() for name in down}) == 4


@every_placement
def test_splitting_a_batch_changes_nothing(placement: Any) -> None:
    whole, split = (
        tiny.run(tiny.opt(dtype=torch.float64), Adapter(placement=placement), Accumulation(steps=steps))
        for steps in (1, 4)
    )
    assert tiny.distance(whole, split) < 1e-10


def test_what_was_saved_gives_the_same_logits(tmp_path: Path) -> None:
    tuning = Adapter(bottleneck=3)
    with tuning.applied(tiny.gpt2().eval(), Live(seed=0)) as model, torch.no_grad():
        for adapter in adapters(model):
            adapter.up.weight.normal_()
        exact = model(input_ids=IDS).logits
        tuning.save(model, tmp_path)
    with tuning.applied(tiny.gpt2().eval(), Live(seed=1)) as model:
        assert not torch.equal(model(input_ids=IDS).logits, exact)
        tuning.load(model, tmp_path)
        assert torch.equal(model(input_ids=IDS).logits, exact)
    with (
        Adapter(bottleneck=2).applied(tiny.gpt2(), Live(seed=0)) as model,
        pytest.raises(ValueError, match="does not fit what trains"),
    ):
        tuning.load(model, tmp_path)


def test_a_low_precision_base_gets_adapters_in_full_precision() -> None:
    model = tiny.llama(dtype=torch.bfloat16)
    with Adapter().applied(model, Live(seed=0)) as adapted:
        assert {adapter.down.weight.dtype for adapter in adapters(adapted)} == {torch.float32}
        assert adapted(input_ids=IDS).logits.dtype == torch.bfloat16


def test_settings_that_leave_no_bottleneck_or_name_two() -> None:
    assert Adapter().obstacle(CPU, Setting(tiny.facts("llama"))) is None
    found = Adapter(reduction_factor=33).obstacle(CPU, Setting(tiny.facts("llama")))
    assert found is not None
    assert "a width of 32 over 33" in found.reason
    with pytest.raises(ValidationError, match="either reduction_factor or bottleneck"):
        Adapter(reduction_factor=4, bottleneck=4)
    assert "reduction_factor" not in Adapter(bottleneck=4).canonical()
    assert "bottleneck" not in Adapter().canonical()
