"""Claims of the chapter on LoRA: formula, start, state, merge; each name begins with its id."""

from __future__ import annotations

import pytest
import torch

from judging import failed, judged, numbers
from paribus.compare.recompute.low_rank import _merged, _moved, _with_gradient, qlora_bytes, trained
from paribus.compare.shapes import tiny_llama
from paribus.techniques import Live, Lora


@pytest.mark.parametrize("claim", ["B25", "B26", "B31", "B39", "B42", "B53"])
def test_all_of_the_chapter_on_lora_itself_holds(claim: str) -> None:
    assert judged(claim).verdict == "supported", judged(claim).reason


def test_b25_a_layer_of_width_4096() -> None:
    found = numbers("B25")
    assert (found["d^2"], found["2dr"]) == (16_777_216, 131_072)


def test_b25_peft_scales_the_update_by_alpha_over_r_which_the_formula_leaves_out() -> None:
    assert "peft scale B A by 2" in judged("B25").reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_b26_another_start_would_be_seen(dtype: torch.dtype) -> None:
    assert _moved(Lora(r=4), dtype) == 0 < _moved(Lora(r=4, init_lora_weights="both_random"), dtype)


def test_b26_both_matrices_zero_would_never_train() -> None:
    ids = torch.arange(3, 19).unsqueeze(0)
    with Lora(r=4).applied(tiny_llama(), Live(seed=0)) as wrapped:
        pairs = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
        with torch.no_grad():
            for parameter in pairs:
                parameter.zero_()
        wrapped(input_ids=ids, labels=ids).loss.backward()
        assert all(parameter.grad is not None and not parameter.grad.any() for parameter in pairs)


def test_b31_optimizer_state_is_four_hundred_times_smaller() -> None:
    found = numbers("B31")
    assert found["state.times_smaller"] == pytest.approx(6_738_415_616 / 16_777_216)
    assert found["operations.share"] == pytest.approx(200 / 3, abs=2)  # two passes of three, and the adapter


def test_b39_the_forward_pass_decodes_too() -> None:
    assert "forward and backward" in judged("B39").reason


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [(torch.float64, 0, 1e-12), (torch.float32, 0, 5e-6), (torch.bfloat16, 1e-4, 0.2)],
)
def test_b42_merging_is_exact_in_algebra_and_not_in_the_format(
    dtype: torch.dtype, least: float, most: float
) -> None:
    alike, far = _merged(dtype)
    assert alike
    assert least <= far <= most


def test_b53_with_b_zero_a_waits_for_b() -> None:
    assert _with_gradient(Lora(r=4)) == {"lora_B"}
    assert _with_gradient(Lora(r=4, init_lora_weights="both_random")) == {"lora_A", "lora_B"}
    assert failed("B53") == []


def test_what_trains_is_counted_as_by_hand() -> None:
    assert trained("llama_2_7b") == 32 * 4 * 2 * 4096 * 16
    assert trained("llama_2_70b") == 80 * 16 * (2 * (8192 + 8192) + 2 * (8192 + 1024))


def test_four_bit_bases_are_as_large_as_is_known() -> None:
    """The QLoRA paper's 0.5 bytes a weight and 0.127 bits of constants, on Llama-2-7B's 6.48 billion."""
    found = qlora_bytes("llama_2_7b")
    assert found["four_bit"] == pytest.approx(6_476_005_376 * 4.127 / 8, rel=1e-4)
    assert found["sixteen_bit"] == 2 * (6_738_415_616 - 6_476_005_376)
