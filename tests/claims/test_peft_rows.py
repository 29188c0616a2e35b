"""Claims of the chapter on PEFT, quantisation and checkpointing; the id of each is in the name."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint_sequential

import tiny
from paribus.techniques import Full, LayerCheckpointing, Live, Lora, NoCheckpointing

IDS = torch.arange(3, 19).unsqueeze(0)
LLAMA_2_7B = {"hidden": 4096, "ffn": 11008, "layers": 32, "vocabulary": 32000}


def llama_2_7b() -> dict[str, int]:
    """Count the parameters of Llama-2-7B by part, from its published sizes."""
    d, f, n, v = (LLAMA_2_7B[key] for key in ("hidden", "ffn", "layers", "vocabulary"))
    return {"attention": 4 * d * d * n, "ffn": 3 * d * f * n, "norms": (2 * n + 1) * d, "ends": 2 * v * d}


def test_b25_the_update_goes_from_d_squared_to_two_d_r() -> None:
    d, r = 4096, 16
    assert d * d == 16_777_216
    assert 2 * d * r == 131_072
    x, w = torch.randn(3, d, dtype=torch.float64), torch.zeros(8, d, dtype=torch.float64)
    a, b = torch.randn(r, d, dtype=torch.float64), torch.randn(8, r, dtype=torch.float64)
    assert torch.allclose(x @ (w + b @ a).T, x @ w.T + (x @ a.T) @ b.T, rtol=1e-10, atol=1e-10)
    with Lora(r=4, target_modules=("q_proj",)).applied(tiny.llama(), Live(seed=0)) as model:
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == 2 * (2 * 32 * 4)  # two layers, d = 32


def test_b25_peft_scales_the_update_by_alpha_over_r_which_the_formula_leaves_out() -> None:
    with Lora(r=16, lora_alpha=32, target_modules=("q_proj",)).applied(tiny.llama(), Live(seed=0)) as model:
        layer: Any = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
        assert layer.scaling["default"] == 2


def test_b27_rank_16_on_attention_is_a_quarter_of_a_percent_and_not_a_tenth() -> None:
    whole = sum(llama_2_7b().values())
    assert whole == 6_738_415_616
    lora = 4 * 2 * 4096 * 16 * 32
    assert lora == 16_777_216
    assert lora / (whole + lora) == pytest.approx(0.00248, abs=5e-6)
    two = lora // 2  # on q_proj and v_proj alone, as in the paper
    assert two / (whole + two) == pytest.approx(0.00124, abs=5e-6)


def test_b40_the_shares_of_the_table_on_llama_2_7b() -> None:
    """LoRA: in the range. Adapters: yes. Prefix: ten times more. Prompt: less. BitFit: it has no biases."""
    whole, (d, n) = sum(llama_2_7b().values()), (4096, 32)
    everywhere = 16 * n * (4 * 2 * d + 3 * (d + 11008))
    assert 0.001 < everywhere / whole < 0.01
    bottleneck = d // 16
    houlsby = 2 * n * (2 * d * bottleneck + bottleneck + d)
    assert 0.01 < houlsby / whole < 0.05
    assert 20 * 2 * n * d / whole == pytest.approx(0.00078, abs=1e-5)
    assert 20 * d / whole == pytest.approx(0.0000122, abs=1e-7)
    assert not [name for name, _ in tiny.llama().named_parameters() if name.endswith("bias")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_b26_with_b_zero_training_starts_at_the_base_bit_for_bit(dtype: torch.dtype) -> None:
    model = tiny.llama(dtype=dtype).eval()
    base = model(input_ids=IDS).logits
    with Lora(r=16).applied(model, Live(seed=0)) as wrapped:
        assert torch.equal(wrapped.eval()(input_ids=IDS).logits, base)


def test_b26_both_matrices_zero_would_never_train() -> None:
    with Lora(r=4).applied(tiny.llama(), Live(seed=0)) as wrapped:
        pairs = [(n, p) for n, p in wrapped.named_parameters() if p.requires_grad]
        with torch.no_grad():
            for _, parameter in pairs:
                parameter.zero_()
        wrapped(input_ids=IDS, labels=IDS).loss.backward()
        assert all(parameter.grad is not None and not parameter.grad.any() for _, parameter in pairs)


def test_b53_both_matrices_random_move_the_start_and_give_both_a_gradient() -> None:
    model = tiny.llama().eval()
    base = model(input_ids=IDS).logits
    with Lora(r=4, init_lora_weights="both_random").applied(model, Live(seed=0)) as wrapped:
        moved = wrapped.eval()(input_ids=IDS, labels=IDS)
        assert not torch.allclose(moved.logits, base, atol=1e-4)
        moved.loss.backward()
        assert all(p.grad is not None and p.grad.any() for p in wrapped.parameters() if p.requires_grad)
    with Lora(r=4).applied(tiny.llama(), Live(seed=0)) as wrapped:
        wrapped(input_ids=IDS, labels=IDS).loss.backward()
        still = {n for n, p in wrapped.named_parameters() if p.requires_grad and not p.grad.any()}  # type: ignore[union-attr]
        assert still == {n for n, p in wrapped.named_parameters() if "lora_A" in n}


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [(torch.float32, 0, 5e-6), (torch.bfloat16, 1e-4, 0.2), (torch.float16, 1e-5, 0.02)],
)
def test_b42_merging_is_exact_in_algebra_and_not_in_the_format(
    dtype: torch.dtype, least: float, most: float
) -> None:
    tuning = Lora(r=4)
    with tuning.applied(tiny.llama(dtype=dtype), Live(seed=0)) as wrapped:
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
        apart = wrapped.eval()(input_ids=IDS).logits.float()
        merged: Any = tuning.merged(wrapped)
        together = merged(input_ids=IDS).logits.float()
        assert not any("lora" in name for name, _ in merged.named_parameters())
    difference = ((apart - together).norm() / apart.norm()).item()
    assert least <= difference <= most


def saved(layers: torch.nn.Sequential, segments: int) -> tuple[int, int]:
    """Return how often all layers but the last, and the last, ran forward in one checkpointed step."""
    runs = [0] * len(layers)

    def count(index: int) -> Any:
        def hook(*_: Any) -> None:
            runs[index] += 1

        return hook

    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(count(index))
    x = torch.randn(2, 8, requires_grad=True)
    checkpoint_sequential(layers, segments, x, use_reentrant=False).sum().backward()
    return sum(runs[:-1]), runs[-1]


def test_b14_the_call_runs_wants_reentrancy_said_and_leaves_the_last_segment_alone() -> None:
    layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(8)])
    assert saved(layers, 8) == (14, 1)  # seven layers twice, the last one once
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoint_sequential(layers, 8, torch.randn(2, 8, requires_grad=True))
    assert any("use_reentrant" in str(one.message) for one in caught)


def test_b39_a_quantised_base_is_dequantised_in_the_forward_pass_too() -> None:
    from bitsandbytes import functional

    weight = torch.randn(64, 64)
    stored, state = functional.quantize_4bit(weight, quant_type="nf4")
    assert stored.dtype == torch.uint8
    assert stored.numel() == weight.numel() // 2
    restored = functional.dequantize_4bit(stored, state)
    assert restored.dtype == weight.dtype
    assert ((restored - weight).norm() / weight.norm()).item() < 0.12


def test_b17_checkpointing_says_nothing_of_sharding() -> None:
    """Orthogonal as stated: it changes no parameter, gradient or state that sharding would split."""
    runs = [tiny.run(tiny.llama(), Full(), one) for one in (NoCheckpointing(), LayerCheckpointing())]
    assert all(torch.equal(runs[0].weights[name], weight) for name, weight in runs[1].weights.items())


def test_full_tuning_is_the_square_that_lora_replaces() -> None:
    with Full().applied(tiny.llama(), Live(seed=0)) as model:
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert trained == sum(p.numel() for p in model.parameters())
    assert math.isclose(trained, sum(p.numel() for p in tiny.llama().parameters()))
