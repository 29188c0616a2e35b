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
from paribus.techniques import (
    Bf16,
    Fp8,
    Full,
    LayerCheckpointing,
    Live,
    ModelFacts,
    Mxfp8,
    NoEffect,
    Setting,
    Tf32,
)
from paribus.techniques.precision import native, torchao_fp8, traced
from paribus.techniques.precision.mfu import PEAKS, mfu
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
    with first_step(model, ran, Live(seed=0, lengths=(16,))):
        model.eval()(input_ids=IDS)
        assert not ran.dtypes
        step(model.train())
        ran.end()
        counted = dict(ran.dtypes)
        step(model)
    assert counted == dict(ran.dtypes) and ran.steps == 1 and ran.tokens == 16


def switches() -> tuple[str, ...]:
    newer: list[Any] = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]
    return (torch.get_float32_matmul_precision(), *(place.fp32_precision for place in newer))


def test_tf32_is_switched_on_and_back() -> None:
    before = switches()
    with pytest.raises(KeyError), Tf32().natively(None, Live(seed=0)):
        assert switches() == ("high", "tf32", "tf32")
        raise KeyError
    assert switches() == before


def test_products_of_fp32_words_are_tf32_where_the_device_reads_them_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a CPU the switch changes nothing, which is told; on CUDA the setting at the product decides."""

    def run(model: Any) -> None:
        with Tf32().natively(model, Live(seed=0)):
            step(model)

    with pytest.raises(NoEffect, match=r"0 ran in tf32 \(45 in float32\)"):
        watched(Tf32(), run)
    allowed = lambda _: torch.backends.cuda.matmul.fp32_precision == "tf32"  # noqa: E731
    monkeypatch.setattr(traced, "reads_19_bits", allowed)
    assert watched(Tf32(), run)["matrix_products_of_first_step"] == {"tf32": 45}
    with pytest.raises(NoEffect, match="0 ran in tf32"):
        watched(Tf32(), step)


def test_a_scale_is_no_operand() -> None:
    """Scales of rows are matrices in fp32, behind the operands."""
    ran, ones = Ran(), torch.ones
    left, right = (torch.ones(16, 16).to(torch.float8_e4m3fn) for _ in range(2))
    ran.begin()
    torch._scaled_mm(left, right.t(), ones(16, 1), ones(1, 16), out_dtype=torch.bfloat16)
    ran.end()
    assert ran.dtypes == {"float8_e4m3fn": 1} and ran.eight_bit() == 1 and ran.flops == 2 * 16**3


def test_flops_are_the_rule_of_six_and_nothing_that_was_computed_again() -> None:
    """Each weight of a linear layer takes 6 FLOPs a token; attention's own products are the CPU's secret."""
    model = tiny.llama()
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    plain = watched(Bf16(), lambda model: step(model, torch.bfloat16))
    assert plain["flops_of_first_step"] == 6 * weights * IDS.numel()
    assert "flops_computed_again" not in plain

    def checkpointed(model: Any) -> None:
        with LayerCheckpointing().applied(model, Live(seed=0)):
            step(model, torch.bfloat16)

    again = watched(Bf16(), checkpointed)
    assert again["flops_of_first_step"] == plain["flops_of_first_step"]
    assert 0 < again["flops_computed_again"] <= 2 * weights * IDS.numel()


def test_kernels_are_named_by_the_profiler() -> None:
    """A CPU's kernels have the names of torch's operations; a device's are cuBLAS's and CUTLASS's own."""
    ran, model = Ran(), tiny.llama().train()
    with first_step(model, ran, Live(seed=0), torch.profiler.ProfilerActivity.CPU):
        step(model)
    assert set(ran.kernels) <= {"aten::mm", "aten::addmm", "aten::bmm"} and ran.kernels["aten::mm"] >= 45
    names = {"nvjet_qqtst_128x256_128x6_2x1_v_bz_TNT": 3, "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n": 1}
    assert traced.products_among({**names, "vectorized_elementwise_kernel": 9}) == names


@pytest.mark.parametrize(
    ("device", "kind", "share"),
    [
        ("NVIDIA H200", "bf16", 400e12 / 989.5e12),
        ("NVIDIA H100 80GB HBM3", "fp8", 400e12 / 1979e12),
        ("NVIDIA H100 PCIe", "bf16", 400e12 / 756e12),
        ("NVIDIA H100 NVL", "bf16", 400e12 / 835.5e12),
        ("NVIDIA A100-SXM4-80GB", "tf32", 400e12 / 156e12),
        ("NVIDIA A100-SXM4-80GB", "fp8", None),
        ("NVIDIA GeForce RTX 4090", "fp16", 400e12 / 165.2e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "fp16", None),
        ("NVIDIA GB200", "bf16", None),
        ("Intel Xeon", "bf16", None),
    ],
)
def test_utilisation_is_a_share_of_a_known_peak(device: str, kind: str, share: float | None) -> None:
    found = mfu(800e12, 2.0, device, kind)
    assert found == (share if share is None else pytest.approx(share))


def test_a_format_of_fewer_bits_is_no_slower() -> None:
    for rates in PEAKS.values():
        assert rates["fp32"] <= rates["tf32"] <= rates["bf16"] == rates["fp16"] <= rates.get("fp8", 1e9)


def test_the_proof_of_a_native_run_on_a_known_device_has_its_utilisation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run is real and on a CPU; only the name of the device and its presence at the proof are played."""
    run = tiny.run(tiny.llama(), Full(), Bf16(), max_steps=3)
    assert "mfu" not in run.proofs[1]
    ran = run.live.observed["precision"]
    assert ran.tokens > 0 and run.trained.cost is not None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    share = ran.flops / ran.tokens * run.trained.cost.tokens_per_second / 989.5e12
    assert Bf16().proof(None, run.live)["mfu"] == pytest.approx(share, rel=0.01)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert "mfu" not in Bf16().proof(None, run.live)  # type: ignore[arg-type]


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
BLACKWELL = HOPPER.model_copy(update={"compute_capability": (10, 0)})


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


@pytest.mark.parametrize("level", [Bf16(keep_high=("lm_head",)), Tf32(attention=True)], ids=str)
def test_what_hardware_would_ignore_is_refused(level: Any) -> None:
    found = level.obstacle(HOPPER, Setting(FACTS))
    assert found is not None and "hardware decides by itself" in found.reason


@pytest.mark.parametrize(
    ("machine", "installed", "reason"),
    [
        (BLACKWELL, True, None),
        (BLACKWELL, False, "native mxfp8 needs torchao, which is not installed"),
        (HOPPER, True, "need compute capability 10.0; a GPU has 9.0"),
    ],
)
def test_native_mxfp8_needs_blackwell_and_torchao(
    machine: Machine, installed: bool, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchao_fp8, "find_spec", lambda name: installed or None)
    found = Mxfp8().obstacle(machine, Setting(FACTS))
    assert (found is None) if reason is None else (found is not None and reason in found.reason)
    assert found is None or "compute: emulated" in found.way_out


@dataclass(frozen=True)
class Config:
    """The part of torchao's configuration that is set."""

    emulate: bool = False
    pad_inner_dim: bool = False

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
    ran = Ran(scored=scored)
    with torchao_fp8.converted(model, "tensorwise", lambda path: "mlp" in path, lambda: ran) as changed:
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
    everything = torchao_fp8.converted(tiny.llama(), "tensorwise", lambda path: True, Ran)
    with pytest.raises(NoEffect, match="converted no linear layer"), everything:
        pass
