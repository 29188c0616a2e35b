"""torchao's own 8-bit layers, where it is installed: torch computes their products on a CPU too, slowly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import tiny
from paribus.techniques import Fp8, Full, Live, Lora, Mxfp8, NoEffect
from paribus.techniques.precision import native, torchao_fp8

pytest.importorskip("torchao")
IDS = torch.arange(3, 33).view(2, 15)  # 30 tokens: no multiple of 16


@pytest.fixture
def autocast_as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchao asks for CUDA's autocast alone, whatever the device."""
    asked = torch.is_autocast_enabled
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *device: asked(*(device or ("cpu",))))
    monkeypatch.setattr(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cpu"))


def step(model: Any) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=IDS, labels=IDS).loss
    loss.backward()
    return loss.detach()


@contextmanager
def natively(level: Any, model: Any, live: Live) -> Iterator[Any]:
    with level.applied(model, live) as changed:
        yield changed


@pytest.mark.usefixtures("autocast_as_on_cuda")
@pytest.mark.parametrize(
    ("recipe", "products"),
    [
        ("standard", {"float8_e5m2 x float8_e4m3fn": 28, "float8_e4m3fn": 14, "bfloat16": 3}),
        ("rowwise", {"float8_e4m3fn": 42, "bfloat16": 3}),
        ("rowwise_with_gw_hp", {"float8_e4m3fn": 28, "bfloat16": 17}),
    ],
)
def test_each_recipe_multiplies_in_its_formats(recipe: Any, products: dict[str, int]) -> None:
    """Fourteen layers have three products each; the head's are the Trainer's in bf16."""
    model, live, level = tiny.llama().train(), Live(seed=0), Fp8(recipe=recipe)
    names, modules = list(model.state_dict()), dict(model.named_modules())
    with natively(level, model, live) as changed:
        assert list(changed.state_dict()) == names
        step(changed)
        level.after_step(changed, live)
        proof = level.proof(changed, live)
    assert proof["matrix_products_of_first_step"] == products
    assert proof["modules_converted"] == 14
    assert dict(model.named_modules()) == modules


def test_layers_that_are_wrapped_by_lora_are_converted_and_small_matrices_are_not() -> None:
    model, live, level = tiny.llama().train(), Live(seed=0), Fp8()
    with Lora(r=4).applied(model, live) as wrapped, natively(level, wrapped, live):
        step(wrapped)
        ran = live.observed["precision"]
        assert len(ran.low) == 14 and all(path.endswith(".base_layer") for path in ran.low)
        assert all(products == 1 for products in ran.low.values())
        level.after_step(wrapped, live)
        assert level.proof(wrapped, live)["modules_converted"] == 14
    assert not any("Float8" in type(module).__name__ for module in model.modules())


def test_what_trained_stays_when_the_layers_are_back() -> None:
    model = tiny.llama()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    run = tiny.run(model, Full(), Fp8(), max_steps=3)
    assert all(torch.equal(run.weights[name], weight) for name, weight in model.named_parameters())
    assert all(not torch.equal(before[name], weight) for name, weight in run.weights.items())
    assert run.proofs[1]["modules_converted"] == 14


@pytest.mark.parametrize("level", [Fp8(), Fp8(recipe="rowwise")], ids=str)
def test_native_and_emulated_agree(level: Fp8) -> None:
    """The same roundings in the same places but for autocast's bf16, so losses are nearly equal."""
    exact = tiny.run(tiny.llama(), Full(), max_steps=6).losses
    hard = tiny.run(tiny.llama(), Full(), level, max_steps=6).losses
    soft = tiny.run(
        tiny.llama(), Full(), level.model_copy(update={"compute": "emulated"}), max_steps=6
    ).losses
    assert hard == pytest.approx(soft, rel=2e-3)
    assert hard != exact


def test_scoring_as_trained_multiplies_in_8_bits() -> None:
    model, live, level = tiny.llama(), Live(seed=0), Fp8()
    exact = model.eval()(input_ids=IDS).logits
    with natively(level, model, live):
        assert torch.equal(model.eval()(input_ids=IDS).logits, exact)
        with level.as_trained(model, live):
            assert not torch.equal(model(input_ids=IDS).logits, exact)
        assert torch.equal(model(input_ids=IDS).logits, exact)


def test_a_conversion_that_multiplies_in_fp32_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault is torchao's own emulation, which a run would not notice."""
    converted = torchao_fp8.converted
    monkeypatch.setattr(torchao_fp8, "converted", lambda *given: converted(*given, emulate=True))
    with pytest.raises(NoEffect, match=r"0 ran in float8_e4m3fn \(.*float32"):
        tiny.run(tiny.llama(), Full(), Fp8(), max_steps=2)


def test_one_layer_that_falls_back_is_named() -> None:
    """The planted fault: one of fourteen converted layers computes as before."""
    model, live, level = tiny.llama().train(), Live(seed=0), Fp8()
    with natively(level, model, live):
        layer = model.model.layers[1].mlp.down_proj
        rounded = lambda x: torch.nn.functional.linear(x, layer.weight)  # noqa: E731
        path, module, _, ran = layer.forward.args
        vars(layer)["forward"] = lambda x: torchao_fp8.forward(path, module, rounded, ran, x)
        step(model)
        level.after_step(model, live)
        with pytest.raises(NoEffect, match=r"model\.layers\.1\.mlp\.down_proj was converted .* \(1 such\)"):
            level.proof(model, live)


def test_a_name_of_keep_high_that_is_no_module_is_told() -> None:
    with pytest.raises(NoEffect, match=r"keep_high: layers\.9 is the name of no module"):
        tiny.run(tiny.llama(), Full(), Fp8(keep_high=("layers.9",)), max_steps=2)


def test_gpt2_has_no_layer_that_torchao_knows() -> None:
    with pytest.raises(NoEffect, match="torchao converted no linear layer"):
        tiny.run(tiny.gpt2(), Full(), Fp8(), max_steps=2)


class Emulated(Mxfp8):
    """MXFP8 by torchao's emulation: its conversion without the units of a device."""

    @contextmanager
    def natively(self, model: Any, live: Live) -> Iterator[None]:
        from paribus.techniques.precision import torchao_mx

        with torchao_mx.converted(model, lambda p: False, lambda: live.observed["precision"], emulate=True):
            yield


def test_mx_layers_multiply_in_blocks_and_leave_no_trace() -> None:
    """k and v have 16 outputs, no multiple of 32. Rounded up as torchao does, errors stay those of E4M3."""
    model, live = tiny.llama().train(), Live(seed=0)
    modules, names = dict(model.named_modules()), list(model.state_dict())
    plain = step(model)
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    with Emulated().applied(model, live):
        assert list(model.state_dict()) == names and dict(model.named_modules()) == modules
        assert step(model) == pytest.approx(float(plain), abs=0.01)
        ran = live.observed["precision"]
        assert len(ran.low) == 10 and not any("k_proj" in path or "v_proj" in path for path in ran.low)
    assert not any("forward" in vars(module) for module in model.modules())
    for name, weight in model.named_parameters():
        error = (weight.grad - gradients[name]).norm() / gradients[name].norm()
        assert error < 0.2, (name, error)


def test_mx_products_that_are_emulated_are_no_proof() -> None:
    live, model, level = Live(seed=0), tiny.llama().train(), Emulated()
    with level.applied(model, live):
        step(model)
        level.after_step(model, live)
        with pytest.raises(NoEffect, match="0 ran in float8_e4m3fn"):
            native.evidence("mxfp8", level.native_dtype, live)
