"""Native levels prove the dtype that matrix products really ran in, and fall back to nothing silently."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

import tiny
from paribus.machine import Machine
from paribus.techniques import Bf16, Fp8, Live, ModelFacts, NoEffect, Setting, Tf32
from paribus.techniques.precision import native, torchao_fp8
from paribus.techniques.precision.traced import Ran, first_step

IDS = torch.arange(3, 19).unsqueeze(0)


def step(model: Any, dtype: torch.dtype | None = None) -> None:
    """Run forward and backward once, under autocast to a dtype if one is given."""
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        loss = model(input_ids=IDS, labels=IDS).loss
    loss.backward()


def watched(technique: Any, run: Any) -> dict[str, Any]:
    live = Live(seed=0)
    with native.watched(tiny.llama().train(), live) as model:
        run(model)
        technique.after_step(model, live)
    return technique.proof(model, live)


def test_products_under_autocast_are_counted_in_both_directions() -> None:
    found = watched(Bf16(), lambda model: step(model, torch.bfloat16))["matrix_products_of_first_step"]
    assert found["bfloat16"] == 3 * 15  # seven layers in each of two blocks and the head, three products each
    assert all(name in ("bfloat16", "float32") for name in found)


def test_a_silent_fallback_is_told() -> None:
    """The planted fault: the level says bf16 and nothing casts."""
    with pytest.raises(NoEffect, match="of the matrix products of the first step 0 ran in bfloat16"):
        watched(Bf16(), step)


def test_a_conversion_that_multiplies_in_bf16_is_no_fp8() -> None:
    with pytest.raises(NoEffect, match=r"0 ran in float8_e4m3fn .* in bfloat16"):
        watched(Fp8(), lambda model: step(model, torch.bfloat16))


def test_only_the_first_step_is_counted_and_scoring_is_not() -> None:
    ran, model = Ran(), tiny.llama()
    with first_step(model, ran):
        model.eval()(input_ids=IDS)
        assert not ran.dtypes
        step(model.train())
        ran.end()
        counted = dict(ran.dtypes)
        step(model)
    assert counted == dict(ran.dtypes) and ran.steps == 1


def test_tf32_is_switched_on_and_back() -> None:
    before = torch.get_float32_matmul_precision()
    with Tf32().natively(None, Live(seed=0)):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


FACTS = ModelFacts(
    architecture="LlamaForCausalLM",
    model_type="llama",
    parameters=1,
    bias_parameters=0,
    hidden_size=1,
    layers=1,
    vocabulary=1,
)
HOPPER = Machine(device="cuda", name="a GPU", memory_bytes=1, cores=1, compute_capability=(9, 0))


@pytest.mark.parametrize(
    ("technique", "installed", "reason"),
    [
        (Fp8(), True, None),
        (Fp8(recipe="rowwise"), True, None),
        (Fp8(), False, "needs torchao, which is not installed"),
        (Fp8(recipe="deepseek"), True, "torchao has no recipe deepseek"),
        (Fp8(scaling="delayed"), True, "torchao has no recipe standard with scaling delayed"),
        (Fp8(compute="emulated", recipe="deepseek"), False, None),
    ],
)
def test_native_fp8_needs_torchao_and_one_of_its_recipes(
    technique: Fp8, installed: bool, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchao_fp8, "find_spec", lambda name: installed or None)
    found = technique.obstacle(HOPPER, Setting(FACTS))
    assert (found is None) if reason is None else (found is not None and reason in found.reason)


@dataclass(frozen=True)
class Config:
    """The part of torchao's configuration that is set."""

    emulate: bool = False

    @staticmethod
    def from_recipe_name(name: str) -> Config:
        assert name in ("tensorwise", "rowwise", "rowwise_with_gw_hp")
        return Config()


class Converted(torch.nn.Linear):
    """Stands for torchao's layer: it shares its parameters and gives twice what it should."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def convert(model: torch.nn.Module, *, config: Config, module_filter_fn: Any) -> None:
    for path, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and module_filter_fn(module, path):
            other = Converted(1, 1, bias=False)
            other.weight, other.bias = module.weight, module.bias
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, other)


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put a stand-in where torchao would be: it needs no device, and its effect is easy to see."""
    package, float8 = ModuleType("torchao"), ModuleType("torchao.float8")
    vars(float8).update(Float8LinearConfig=Config, convert_to_float8_training=convert)
    monkeypatch.setitem(sys.modules, "torchao", package)
    monkeypatch.setitem(sys.modules, "torchao.float8", float8)
    yield


@contextmanager
def fp8(model: Any, *, scored: bool = False) -> Iterator[list[str]]:
    with torchao_fp8.converted(model, "tensorwise", lambda path: "mlp" in path, lambda: scored) as changed:
        yield changed


@pytest.mark.usefixtures("torchao")
def test_layers_are_converted_for_training_and_come_back() -> None:
    model = tiny.llama()
    before, weights = dict(model.named_modules()), dict(model.named_parameters())
    exact = model.eval()(input_ids=IDS).logits
    with fp8(model) as changed:
        assert len(changed) == 8 and all("self_attn" in path for path in changed)
        assert torch.equal(model.eval()(input_ids=IDS).logits, exact)
        assert not torch.equal(model.train()(input_ids=IDS).logits, exact)
        assert dict(model.named_parameters()) == weights
    assert dict(model.named_modules()) == before
    with fp8(model, scored=True):
        assert not torch.equal(model.eval()(input_ids=IDS).logits, exact)


@pytest.mark.usefixtures("torchao")
def test_a_conversion_of_nothing_is_told() -> None:
    everything = torchao_fp8.converted(tiny.llama(), "tensorwise", lambda path: True, lambda: False)
    with pytest.raises(NoEffect, match="converted no linear layer"), everything:
        pass
