"""Claims of quality held against the number of their questions; the id of each is in the name."""

from __future__ import annotations

import math

import pytest

from judging import failed, judged, numbers
from paribus.compare.recompute.significance import nearest_share, standard_error, z


def test_a_standard_error_is_that_of_two_binomial_shares() -> None:
    """Two shares of a half of 100 questions: sqrt(2 x 0.25 / 100) = 7.07 points."""
    assert standard_error(50, 50, 100) == pytest.approx(100 * math.sqrt(0.005))
    assert z(60, 50, 100) == pytest.approx(10 / (100 * math.sqrt((0.24 + 0.25) / 100)))


def test_a44_the_gain_of_noise_is_told_from_chance_and_that_of_dropout_is_not() -> None:
    assert failed("A44") == ["the printed figures tell dropout from plain tuning"]
    assert "z = 1.11" in judged("A44").reason
    assert "gain" not in judged("A44").reason  # the two gains are right


def test_a51_the_best_alpha_is_not_told_from_its_neighbour() -> None:
    found = numbers("A51")
    assert found["z of alpha 5 against 10"] == pytest.approx(0.28, abs=0.005)
    assert found["z of alpha 5 against 15"] == pytest.approx(1.42, abs=0.005)
    assert failed("A51") == ["the printed figures tell alpha 5, the best, from 10"]


@pytest.mark.parametrize(("score", "right"), [(32.5, 53), (32.3, 53), (31.8, 52)])
def test_a69_of_three_scores_one_is_a_share_of_164(score: float, right: int) -> None:
    found, share = nearest_share(score, 164)
    assert found == right
    assert (round(share, 1) == score) is (score == 32.3)


def test_a69_the_losses_add_up_and_are_below_a_standard_error() -> None:
    found = numbers("A69")
    assert found["z of the loss in MMLU"] == pytest.approx(0.69, abs=0.005)
    assert found["z of the loss in HumanEval"] == pytest.approx(0.14, abs=0.005)
    assert found["z of the loss in GSM8K"] == pytest.approx(0.36, abs=0.005)
    assert judged("A69").verdict == "contradicted"
    assert "loss." not in judged("A69").reason
    assert "32.3 is no" not in judged("A69").reason


def test_a70_164_questions_cannot_show_a_loss_below_one_point() -> None:
    found = numbers("A70")
    assert found["loss"] == pytest.approx(0.7)
    assert found["bound of the loss in HumanEval"] == pytest.approx(0.7 + 1.96 * 5.16, abs=0.01)
    assert judged("A70").verdict == "contradicted"
