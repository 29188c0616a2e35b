"""Emulated products are those of rounded operands; what was converted is counted; evaluation is untouched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.pytorch_utils import Conv1D

import tiny
from paribus.machine import Machine
from paribus.techniques import (
    Accumulation,
    Bf16,
    Fp8,
    Fp16,
    Full,
    Live,
    Lora,
    ModelFacts,
    Mxfp4,
    NoEffect,
    Setting,
)
from paribus.techniques.precision.emulate import emulated
from paribus.techniques.precision.formats import BF16, E4M3, E5M2, FP16, Format, round_to
from paribus.techniques.precision.recipes import Cast, everywhere
from paribus.techniques.precision.scaling import LOSS_SCALE

GRADIENT_SCALE = {"bf16": 1.0, "fp16": LOSS_SCALE, "fp8": 1.0}


class Holder(torch.nn.Module):
    """A model of one layer, with the head that emulation asks for."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def get_output_embeddings(self) -> None:
        return None


def by_hand(values: torch.Tensor, form: Format, factor: float = 1.0) -> torch.Tensor:
    """Scale as the recipe does, round and scale back."""
    if form.saturates:
        factor = form.largest / values.abs().max().item()
    return round_to(values * factor, form) / factor


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
@pytest.mark.parametrize(
    ("technique", "operand", "gradient"),
    [
        (Bf16(compute="emulated"), BF16, BF16),
        (Fp16(compute="emulated"), FP16, FP16),
        (Fp8(compute="emulated"), E4M3, E5M2),
    ],
    ids=["bf16", "fp16", "fp8"],
)
def test_the_three_products_are_those_of_rounded_operands(
    technique: Any, operand: Format, gradient: Format, kind: str
) -> None:
    torch.manual_seed(0)
    layer: Any = torch.nn.Linear(32, 16) if kind == "linear" else Conv1D(16, 32)
    weight = layer.weight if kind == "linear" else layer.weight.t()
    x, upstream = torch.randn(2, 3, 32, requires_grad=True), torch.randn(2, 3, 16)
    with technique.applied(Holder(layer), Live(seed=0)) as model:
        output = model(x)
        output.backward(upstream)
    scale = GRADIENT_SCALE[technique.kind]
    xq, wq = by_hand(x.detach(), operand), by_hand(weight.detach(), operand)
    gq = by_hand(upstream, gradient, scale)
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(output.detach(), xq @ wq.t() + layer.bias, **close)
    torch.testing.assert_close(x.grad, gq @ wq, **close)
    got = layer.weight.grad if kind == "linear" else layer.weight.grad.t()
    torch.testing.assert_close(got, gq.flatten(0, 1).t() @ xq.flatten(0, 1), **close)
    torch.testing.assert_close(layer.bias.grad, upstream.sum((0, 1)), **close)
    assert (output.detach() - layer(x.detach())).abs().max() > 0


def test_evaluation_rounds_nothing() -> None:
    model = tiny.llama().eval()
    ids = torch.arange(3, 11).unsqueeze(0)
    exact = model(input_ids=ids).logits
    with Fp8(compute="emulated").applied(model, Live(seed=0)) as changed:
        assert torch.equal(changed(input_ids=ids).logits, exact)
        assert not torch.equal(changed.train()(input_ids=ids).logits, exact)


def test_a_rounded_weight_is_never_used_across_an_optimizer_step() -> None:
    """A fresh model at the same weights gives what the running one gives, before and after a step."""
    torch.manual_seed(0)
    live, layer, x = Live(seed=0), torch.nn.Linear(32, 16), torch.randn(4, 32)
    with Bf16(compute="emulated").applied(Holder(layer), live) as model:
        first = model(x)
        assert torch.equal(model(x), first)
        with torch.no_grad():
            layer.weight.mul_(1.5)
        changed = model(x)
        live.step += 1
        layer.weight.data = layer.weight.data * 2
        replaced = model(x)
    for factor, output in ((1.5, changed), (3.0, replaced)):
        expected = by_hand(x, BF16) @ by_hand(layer.weight.detach() / 3 * factor, BF16).t() + layer.bias
        torch.testing.assert_close(output.detach(), expected.detach(), rtol=1e-6, atol=1e-6)


def test_the_proof_counts_what_was_converted_and_how_wrong_it_was() -> None:
    run = tiny.run(tiny.llama(), Full(), Bf16(compute="emulated"), Accumulation(steps=2), max_steps=3)
    proof = run.proofs[1]
    assert proof["modules_converted"] == 15  # seven in each of two layers, and the head
    assert proof["rounded_products"] == {
        "forward": 15 * 6,
        "input_gradient": 15 * 6,
        "weight_gradient": 15 * 6,
    }
    assert all(0.001 < error < 2**-8 for error in proof["largest_rounding_error"].values())
    assert proof["formats"] == dict.fromkeys(("activations", "weights", "gradients"), "bf16")


def test_fp8_leaves_alone_what_8_bit_kernels_leave_alone() -> None:
    """LoRA's matrices have a dimension of 4; at rank 16 they are converted; the head never is."""
    small, large = (
        tiny.run(tiny.llama(), Lora(r=r), Fp8(compute="emulated"), max_steps=3).proofs[1] for r in (4, 16)
    )
    assert small["modules_converted"] == 14
    assert small["modules_skipped"] == {"shape": 28, "head": 1}
    assert large["modules_converted"] == 14 + 28
    assert large["modules_skipped"] == {"head": 1}
    assert "weight_gradient" not in small["rounded_products"]


def test_conv1d_is_converted_too() -> None:
    """GPT-2 has no nn.Linear but its head."""
    proof = tiny.run(tiny.gpt2(), Full(), Fp8(compute="emulated"), max_steps=3).proofs[1]
    assert proof["modules_converted"] == 4
    assert proof["for_example"] == ["transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_proj"]


def test_converting_nothing_is_told() -> None:
    odd = Holder(torch.nn.Linear(30, 16))
    with (
        pytest.raises(NoEffect, match="fp8: the model has no linear layer to convert"),
        Fp8(compute="emulated").applied(odd, Live(seed=0)),  # type: ignore[arg-type]
    ):
        pass


def test_rounding_nothing_is_told() -> None:
    live = Live(seed=0)
    with (
        emulated("bf16", Holder(torch.nn.Linear(2, 2)), live, everywhere(Cast("bf16"))) as model,
        pytest.raises(NoEffect, match="bf16: no product of the training run was rounded"),
    ):
        Bf16(compute="emulated").proof(model, live)


def test_an_overflow_of_fp16_ends_as_diverged() -> None:
    """An embedding of 1e5 does not fit in fp16; in fp32 and bf16 the same run goes on."""

    def run(technique: Any) -> Any:
        model = tiny.llama()
        with torch.no_grad():
            model.model.norm.weight.fill_(1e5)
        return tiny.run(model, Full(), technique, max_steps=3).trained.diverged

    assert run(Fp16(compute="emulated")).quantity in ("loss", "grad_norm")
    assert run(Fp16(compute="emulated")).step == 1
    assert run(Bf16(compute="emulated")) is None


CPU = Machine(name="a CPU", memory_bytes=1, cores=1)
FACTS = ModelFacts(
    architecture="LlamaForCausalLM",
    model_type="llama",
    parameters=1,
    bias_parameters=0,
    hidden_size=1,
    layers=1,
    vocabulary=1,
)


def gpu(*capability: int) -> Machine:
    return Machine(device="cuda", name="a GPU", memory_bytes=1, cores=1, compute_capability=capability)  # type: ignore[arg-type]


@pytest.mark.parametrize("technique", [Bf16(), Fp16(), Fp8()], ids=lambda technique: technique.kind)
def test_native_on_a_cpu_names_the_way_out(technique: Any) -> None:
    obstacle = technique.obstacle(CPU, Setting(FACTS))
    assert f"native {technique.kind} needs a CUDA device" in obstacle.reason
    assert "compute: emulated" in obstacle.way_out
    assert type(technique)(compute="emulated").obstacle(CPU, Setting(FACTS)) is None


@pytest.mark.parametrize(
    ("technique", "machine", "reason"),
    [
        (Bf16(), gpu(8, 0), None),
        (Bf16(), gpu(7, 5), "need compute capability 8.0; a GPU has 7.5"),
        (Fp16(), gpu(7, 5), None),
        (Fp8(), gpu(8, 0), "need compute capability 8.9; a GPU has 8.0"),
        (Mxfp4(), gpu(10, 0), "not part of this version"),
    ],
)
def test_native_needs_a_compute_capability(technique: Any, machine: Machine, reason: str | None) -> None:
    obstacle = technique.obstacle(machine, Setting(FACTS))
    assert (obstacle is None) if reason is None else (reason in obstacle.reason)


def test_the_proof_of_native_bf16_is_the_dtype_that_came_out() -> None:
    """Autocast runs on a CPU too, so what a GPU would do can be watched there, though slowly."""
    proof = tiny.run(tiny.llama(), Full(), Bf16(), max_steps=3).proofs[1]
    flops = proof.pop("flops_of_first_step")
    assert proof == {"compute": "native", "matrix_products_of_first_step": {"bfloat16": 45}} and flops > 0


def test_native_bf16_that_the_trainer_was_not_told_of_is_caught() -> None:
    class Forgotten(Bf16):
        def trainer_arguments(self) -> dict[str, Any]:
            return {}

    with pytest.raises(NoEffect, match="0 ran in bfloat16"):
        tiny.run(tiny.llama(), Full(), Forgotten(), max_steps=3)
