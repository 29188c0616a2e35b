"""Claims of quality held against the number of their questions; the id of each is in the name."""

from __future__ import annotations

import math

import pytest

from judging import judged, numbers
from paribus.compare.recompute.significance import standard_error, z


def test_a_standard_error_is_that_of_two_binomial_shares() -> None:
    """Two shares of a half of 100 questions: sqrt(2 x 0.25 / 100) = 7.07 points."""
    assert standard_error(50, 50, 100) == pytest.approx(100 * math.sqrt(0.005))
    assert z(60, 50, 100) == pytest.approx(10 / (100 * math.sqrt((0.24 + 0.25) / 100)))


def test_a44_the_gain_of_noise_is_told_from_chance_and_that_of_dropout_is_not() -> None:
    found = numbers("A44")
    assert found["gain.neftune"] == pytest.approx(10.2)
    assert found["z of the gain of neftune"] == pytest.approx(4.50, abs=0.01)
    assert found["z of the gain of dropout"] == pytest.approx(1.11, abs=0.005)


def test_a51_the_best_alpha_is_not_told_from_its_neighbour() -> None:
    found = numbers("A51")
    assert found["z of alpha 5 against 10"] == pytest.approx(0.28, abs=0.005)
    assert found["z of alpha 5 against 15"] == pytest.approx(1.42, abs=0.005)


def test_a69_the_losses_add_up_and_are_below_a_standard_error() -> None:
    found = numbers("A69")
    assert found["z of the loss in MMLU"] == pytest.approx(0.69, abs=0.005)
    assert found["z of the loss in HumanEval"] == pytest.approx(0.14, abs=0.005)
    assert found["z of the loss in GSM8K"] == pytest.approx(0.36, abs=0.005)
    assert found["loss.GSM8K"] == pytest.approx(-0.7)


def test_a69_only_one_of_three_scores_is_a_whole_number_of_164_problems_to_its_last_digit() -> None:
    found = numbers("A69")
    solved = [found[f"HumanEval.{name} in problems"] for name in ("fp32", "fp16", "fp8")]
    whole = [abs(count - round(count)) <= 0.05 / 100 * 164 for count in solved]
    assert whole == [False, True, False]


def test_a70_164_questions_cannot_show_a_loss_below_one_point() -> None:
    found = numbers("A70")
    assert found["greatest printed loss"] == pytest.approx(0.7)
    assert found["bound of the loss in HumanEval"] == pytest.approx(0.7 + 1.96 * 5.16, abs=0.01)


@pytest.mark.parametrize("name", ["A44", "A51", "A69", "A70"])
def test_figures_that_show_nothing_are_not_run_and_not_contradicted(name: str) -> None:
    assert judged(name).verdict == "not run"
