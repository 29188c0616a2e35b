"""Claims of the article on the memory of an 8B model and of its settings; each name begins with its id."""

from __future__ import annotations

import pytest

from judging import failed, judged, numbers
from paribus.compare.recompute.article_memory import activations, state, tokens_of
from paribus.compare.shapes import parameters

PUBLISHED = {"llama_3_8b": 8_030_261_248, "llama_2_7b": 6_738_415_616, "llama_2_13b": 13_015_864_320,
             "llama_2_70b": 68_976_648_192}  # fmt: skip
"""Elements of the weights as they are published on the hub."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_are_published(name: str) -> None:
    assert parameters(name) == PUBLISHED[name]
    assert state(name) == pytest.approx(16 * PUBLISHED[name] / 1e9)


def test_a01_two_points_on_a_line_through_nothing_leave_no_weights() -> None:
    found = numbers("A01")
    assert found["left_at_batch_0"] == 0
    assert found["weights.16_bit"] == pytest.approx(16.06, abs=0.005)
    assert len(failed("A01")) == 2


def test_a06_the_table_counts_weights_alone() -> None:
    found = numbers("A06")
    weights = [found[f"weights_alone.{name}"] for name in ("fp32", "fp16", "fp8")]
    assert weights == pytest.approx([32.12, 16.06, 8.03], abs=0.005)
    assert [found[f"training_at_least.{name}"] for name in ("fp32", "fp16", "fp8")] == pytest.approx(
        [4 * one for one in weights]
    )
    assert len(failed("A06")) == 3


def test_activations_are_those_of_a_hand_count() -> None:
    """In fp32 a token leaves at least 6 vectors of the width and 4 of the feed-forward layer.

    That in each of 32 layers, and the log softmax over the vocabulary.
    """
    by_hand = 32 * (6 * 4096 + 4 * 14336) * 4 + 128256 * 4
    assert by_hand < 1e9 * (activations(8, 128) - activations(8, 64)) / (8 * 64) < 1.6 * by_hand
    assert activations(8, 64) == pytest.approx(activations(4, 64) * 2, rel=1e-3)


def test_a24_the_parts_are_right_at_one_length() -> None:
    found = numbers("A24")
    tokens = tokens_of(40, 32)
    assert found["tokens_a_sample"] == tokens
    assert abs(activations(32, tokens) - 40) <= abs(activations(32, tokens + 1) - 40)
    assert abs(activations(32, tokens) - 40) <= abs(activations(32, tokens - 1) - 40)
    assert found["total"] == pytest.approx(16 * 8.030261248 + found["activations"])
    assert judged("A24").verdict == "supported"


def test_a25_activations_go_with_the_micro_batch() -> None:
    assert numbers("A25")["reduction"] == pytest.approx(4, rel=1e-3)
    assert judged("A25").verdict == "supported"


def test_a26_the_saving_is_under_a_fifth_and_needs_sharding_on_two_cards() -> None:
    found = numbers("A26")
    assert found["saving"] == pytest.approx(17.9, abs=0.05)
    assert found["total.accumulated"] == pytest.approx(0.75 * 128.484 + 0.25 * found["total.whole"], abs=0.01)
    assert judged("A26").verdict == "supported"
    assert "without sharding" in judged("A26").reason


def test_a34_no_card_of_the_table_holds_its_model() -> None:
    found = numbers("A34")
    memory = [found[f"memory.{size}"] for size in ("7B", "13B", "70B")]
    assert memory == pytest.approx([107.8, 208.3, 1103.6], abs=0.05)
    assert found["weights_in_16_bits.70B"] > 80
    assert judged("A34").reason.count("claimed <=") == 3


def test_a36_autocast_halves_activations_and_nothing_else() -> None:
    assert numbers("A36")["saving"] == pytest.approx(100 * 5 / 138.5, abs=0.05)
    assert "weights float32; gradients float32; moments float32" in judged("A36").reason
