"""Claims of the article on batches and its worked example; each name begins with its id."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from judging import failed, judged, numbers
from paribus.compare.recompute.batches import DRAWN, refused


def test_a05_eight_cards_for_a_day() -> None:
    assert numbers("A05") == {"cost": 576}
    assert judged("A05").verdict == "supported"


def test_a07_the_times_are_right_and_the_samples_are_others() -> None:
    found = numbers("A07")
    assert found["speedup"] == pytest.approx(125 / 6)
    assert len(failed("A07")) == 1
    assert "1,024" in judged("A07").reason
    assert "claimed" not in judged("A07").reason


def test_a08_the_mean_of_the_three_vectors_is_right() -> None:
    sums = (Fraction(32, 10), Fraction(8, 10), Fraction(5, 10))
    assert list(numbers("A08").values()) == pytest.approx([float(one / 3) for one in sums])
    assert judged("A08").verdict == "supported"


@pytest.mark.parametrize("claim", ["A09", "A10", "A11", "A13"])
def test_a09_a10_a11_a13_hold(claim: str) -> None:
    assert judged(claim).verdict == "supported"


def test_a09_a_mean_of_parts_is_the_whole_up_to_rounding() -> None:
    assert 0 <= numbers("A09")["relative_error"] < 1e-14


def test_a10_a_batch_adds_a_first_dimension_to_every_stage() -> None:
    found = numbers("A10")
    for stage, last in (("ids", (7,)), ("embeddings", (7, 768)), ("output", (7, 768))):
        single = [found[f"single.{stage}[{index}]"] for index in range(len(last))]
        batch = [found[f"batch.{stage}[{index}]"] for index in range(len(last) + 1)]
        assert (single, batch) == ([*last], [4, *last])


def test_a13_autograd_refuses_a_second_backward_pass_as_listed() -> None:
    assert numbers("A13")["divisor"] == pytest.approx(4)
    assert "RuntimeError: Trying to backward through the graph a second time" in judged("A13").reason


def test_a12_the_embedding_has_no_such_argument() -> None:
    found = numbers("A12")
    assert [found["input[0]"], found["input[1]"]] == [4, 10]
    assert [found[f"embeddings[{index}]"] for index in range(3)] == [4, 10, 128]
    assert [found["output[0]"], found["output[1]"]] == [4, 2]
    assert failed("A12") == ["the listing runs as printed"]
    assert "vocab_size" in judged("A12").reason


def test_a15_the_ratio_is_right_and_the_listing_cannot_have_printed_it() -> None:
    reason = judged("A15").reason
    assert numbers("A15")["ratio"] == pytest.approx(8.52 / 0.45)
    assert failed("A15") == ["the listing runs as printed"]
    assert "scalar outputs" in reason
    assert "batch_size (32) to match target batch_size (8)" in reason


def test_a23_three_rows_are_a_token_short() -> None:
    assert [len(row) for row in DRAWN] == [7, 6, 6, 6]
    assert [numbers("A23")[f"class[{index}]"] for index in range(4)] == [1, 2, 1, 2]
    assert failed("A23") == ["the four rows that it draws are padded to seven tokens"]


def test_an_error_is_told_by_its_kind_and_first_sentence() -> None:
    assert refused(lambda: 1 % 0) == "ZeroDivisionError: integer modulo by zero"
    assert refused(lambda: 1) == "nothing: it runs"
    with pytest.raises(KeyError):
        refused(lambda: {}["an error that no listing is expected to end in"])


LOGITS = [[1.2, 0.9], [1.4, 0.7], [2.5, 1.7]]
MARGINS = [0.3, -0.7, 0.8]
"""By which the wrong class of each sample leads."""
LEADS = [1 / (1 + math.exp(-margin)) for margin in MARGINS]
SIGNED = [sign * lead / 3 for sign, lead in zip((1, -1, 1), LEADS, strict=True)]
"""What the mean loss gains from the first logit of each sample: the softmax of the wrong class, signed."""
WEIGHT = [sum(g * x for g, x in zip(SIGNED, column, strict=True)) for column in ((1, 2, 3), (2, 1, 3))]
BIAS = sum(SIGNED)


def matrix(claim: str, name: str) -> list[list[float]]:
    found = numbers(claim)
    rows = 1 + max(int(key[len(name) + 1]) for key in found if key.startswith(f"{name}["))
    return [[found[f"{name}[{row},{column}]"] for column in (0, 1)] for row in range(rows)]


def test_a18_the_printed_logits_of_rows_two_and_three_are_not_those_of_the_listing() -> None:
    assert matrix("A18", "logits") == [pytest.approx(row) for row in LOGITS]
    assert judged("A18").reason.count("claimed") == 4


def test_a19_no_printed_loss_is_that_of_the_listing_or_of_the_printed_logits() -> None:
    found = numbers("A19")
    losses = [math.log1p(math.exp(margin)) for margin in MARGINS]
    assert [found[f"loss[{index}]"] for index in range(3)] == pytest.approx(losses)
    assert found["mean_loss"] == pytest.approx(sum(losses) / 3) == pytest.approx(0.80955, abs=1e-5)
    of_printed = [math.log1p(math.exp(margin)) for margin in (0.3, -0.4, 1.0)]
    assert [found[f"loss_of_printed_logits[{i}]"] for i in range(3)] == pytest.approx(of_printed)
    assert judged("A19").reason.count("claimed") == 4


def test_a20_the_printed_gradients_are_of_another_size_and_sign() -> None:
    assert matrix("A20", "dW") == [pytest.approx(WEIGHT), pytest.approx([-one for one in WEIGHT])]
    assert numbers("A20")["db[0]"] == pytest.approx(BIAS) == pytest.approx(0.31087, abs=1e-5)
    assert judged("A20").reason.count("claimed") == 6


def test_a21_the_printed_update_follows_from_the_printed_gradients_and_not_from_the_right_ones() -> None:
    by_printed = matrix("A21", "W_new_by_printed_gradients")
    assert by_printed == [pytest.approx([0.49877, 0.30456]), pytest.approx([0.20123, 0.39544])]
    right = [0.5 - 0.1 * WEIGHT[0], 0.3 - 0.1 * WEIGHT[1]]
    assert matrix("A21", "W_new")[0] == pytest.approx(right)
    assert numbers("A21")["b_new[0]"] == pytest.approx(0.1 - 0.1 * BIAS)
    assert judged("A21").reason.count("claimed") == 6


def test_a22_three_updates_are_further_than_one() -> None:
    found = numbers("A22")
    moved = {name: 0.5 - found[f"W_new.{name}[0,0]"] for name in ("one_update", "three_updates")}
    assert moved["one_update"] == pytest.approx(0.1 * WEIGHT[0])
    assert moved["three_updates"] > 2 * moved["one_update"]
    assert judged("A22").reason == "mean_loss is 0.809547, claimed 0.6443"
