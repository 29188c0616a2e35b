"""Claims of the article on memory, cards and money; the id of each is in the name."""

from __future__ import annotations

import pytest

from judging import failed, judged, numbers
from paribus.compare.recompute.resources import A100, state
from paribus.techniques.precision import native


def test_state_is_that_of_the_published_numbers_of_parameters() -> None:
    assert [state(size, 1) for size in ("7B", "13B", "70B")] == [6.738415616, 13.01586432, 68.976648192]


def test_a67_the_sums_are_right_and_the_hardware_is_not_there() -> None:
    reason = judged("A67").reason
    assert judged("A67").verdict == "contradicted"
    assert reason.count(";") == 1  # that one statement, and the semicolon inside it
    assert "compute capability 8.9" in reason
    h100 = A100.model_copy(update={"compute_capability": (9, 0)})
    assert native.obstacle("fp8", h100) is None


def test_a68_the_table_adds_up_and_leaves_out_gradients_and_moments() -> None:
    """16, 8 and 4 bytes a parameter are 107.8, 53.9 and 27.0 GB."""
    assert len(failed("A68")) == 3
    reason = judged("A68").reason
    assert all(f"{gigabytes} GB even" in reason for gigabytes in (108, 54, 27))
    assert "model is" not in reason
    assert numbers("A68")["fp8.model"] == pytest.approx(6.74, abs=0.005)


def test_a74_no_card_holds_a_70b_model_in_training() -> None:
    found = numbers("A74")
    assert found["state of 70B as its FP8 layer keeps it"] == pytest.approx(1103.6, abs=0.1)
    assert found["weights of 70B in FP8"] == pytest.approx(69.0, abs=0.1)
    assert found["fp8.saving"] == pytest.approx(100 * 30 / 168)
    assert failed("A74") == ["one card trains a 70B model"]


def test_a76_cards_and_costs_are_right_and_no_memory_is() -> None:
    found = numbers("A76")
    assert [found[f"{plan}.gpus"] for plan in ("fp32", "fp16", "fp16+accumulation", "all")] == [5, 3, 2, 1]
    costs = [found[f"{plan}.cost"] for plan in ("fp32", "fp16", "fp16+accumulation", "all")]
    assert costs == pytest.approx([360, 120, 96, 28.8])
    assert len(failed("A76")) == 4
    assert "claimed" not in judged("A76").reason


def test_a77_accumulation_cannot_halve_what_is_mostly_state() -> None:
    found = numbers("A77")
    assert found["accumulation.saving"] == pytest.approx(100 * 35 / 168)
    assert found["memory of all factors"] == 25
    assert judged("A77").verdict == "contradicted"


def test_a78_halved_activations_are_no_halved_memory_and_a_split_saves_no_work() -> None:
    found = numbers("A78")
    assert found["half.saving"] == pytest.approx(100 * 20 / 168)
    assert found["fp8.saving"] == pytest.approx(100 * 10 / 148)
    assert found["operations of 8 micro-batches over one batch"] == 1
    assert judged("A78").verdict == "contradicted"


def test_a79_32_is_right_and_no_card_is_large_enough() -> None:
    found = numbers("A79")
    assert all(found[f"{size}.effective_batch"] == 32 for size in ("7B", "13B", "70B"))
    reason = judged("A79").reason
    assert reason.count("claimed <=") == 3
    assert found["13B weights alone, 16 bits"] > 24


def test_a88_the_articles_own_table_saves_less_than_a_fifth() -> None:
    assert numbers("A88")["saving.low"] == pytest.approx(17.857, abs=1e-3)
    assert judged("A88").verdict == "contradicted"
    assert "saving.high" not in judged("A88").reason  # 17.9 % is below 75 %, as claimed


def test_a91_the_summary_has_the_wrong_roles_and_saving() -> None:
    assert judged("A91").verdict == "contradicted"
    assert len(failed("A91")) == 2


def test_a92_ten_hours_at_three_dollars_are_thirty() -> None:
    found = numbers("A92")
    assert (found["before.cost"], found["after.cost"]) == (360, 30)
    assert found["saving"] == pytest.approx(91.667, abs=1e-3)
    assert judged("A92").verdict == "contradicted"
    assert "before.cost" not in judged("A92").reason
