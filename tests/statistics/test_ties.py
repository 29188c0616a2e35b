"""Tie groups against published letters, and against the law that only arms that differ share none."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.statistics import binomial_error, binomial_ties, compact_letters, holm, tie_groups
from paribus.statistics.ties import _letter

ARMS = tuple(range(7))


def test_letters_as_multcompview_prints_them() -> None:
    """R's multcompView (Graves and Piepho), examples 1 and 2 of multcompLetters."""
    assert compact_letters("ABC", [("B", "C")]) == {"A": "ab", "B": "a", "C": "b"}
    assert compact_letters("abcd", [("a", "b"), ("a", "c"), ("b", "d")]) == {
        "a": "a", "b": "b", "c": "bc", "d": "ac",
    }  # fmt: skip


@given(st.sets(st.sampled_from(list(combinations(ARMS, 2)))))
def test_two_arms_share_a_letter_unless_they_differ(different: set[tuple[int, int]]) -> None:
    letters = compact_letters(ARMS, different)
    for pair in combinations(ARMS, 2):
        shared = set(letters[pair[0]]) & set(letters[pair[1]])
        assert bool(shared) == (pair not in different)
    groups = {
        letter: {arm for arm in ARMS if letter in letters[arm]} for letter in set("".join(letters.values()))
    }
    assert not any(one < other for one in groups.values() for other in groups.values())  # absorbed


def test_the_best_arm_stands_first_and_has_the_letter_a() -> None:
    scores, ps = {"x": 1.0, "y": 3.0, "z": 2.0}, {("x", "y"): 0.001, ("z", "y"): 0.9, ("x", "z"): 0.001}
    assert dict(tie_groups(scores, ps).letters) == {"y": "a", "z": "a", "x": "b"}
    assert list(tie_groups(scores, ps, higher_is_better=False).letters) == ["x", "z", "y"]


def test_p_is_adjusted_over_all_pairs_and_an_untested_pair_is_no_difference() -> None:
    scores = {"a": 3.0, "b": 2.0, "c": 1.0}
    ps = {("a", "b"): 0.02, ("a", "c"): 0.03, ("b", "c"): None}
    found = tie_groups(scores, ps)
    assert dict(found.holm_p) == pytest.approx({("a", "b"): 0.04, ("a", "c"): 0.04})
    assert dict(found.letters) == {"a": "a", "b": "b", "c": "b"}
    assert found.apart
    assert not tie_groups(scores, dict.fromkeys(ps, 0.9)).apart


def test_binomial_error_of_a_leaderboard_score() -> None:
    """636 of the 1,319 problems of GSM8K: 48.2 % with an error of 1.4 points."""
    assert binomial_error(636 / 1319, 1319) == pytest.approx(0.013758, abs=1e-6)
    with pytest.raises(ValueError, match="no share"):
        binomial_error(1.2, 10)


def test_binomial_ties_are_newcombes_difference_over_its_plain_error() -> None:
    """56 of 70 against 48 of 80 (Newcombe 1998, example a): 0.2 with a Wald interval of 0.0575 to 0.3425."""
    found = binomial_ties({"one": (0.8, 70), "two": (0.6, 80)})
    z = 0.2 / ((0.3425 - 0.0575) / (2 * 1.959964))
    from scipy.stats import norm

    assert found.holm_p["one", "two"] == pytest.approx(2 * norm.sf(z), rel=2e-3)
    assert dict(found.letters) == {"one": "a", "two": "b"}


def test_a_score_without_error_is_tested_exactly() -> None:
    from paribus.statistics import exact_shares

    found = binomial_ties({"none": (0.0, 20), "some": (0.15, 20), "all": (1.0, 20)})
    exact = [exact_shares((0, 20), (3, 20)), exact_shares((0, 20), (20, 20)), exact_shares((3, 20), (20, 20))]
    assert list(found.holm_p.values()) == pytest.approx(holm([p or 0.0 for p in exact]))
    assert dict(found.letters) == {"all": "a", "some": "b", "none": "b"}


def test_there_are_letters_for_any_number_of_groups() -> None:
    assert [_letter(i) for i in (0, 25, 26, 51, 52)] == ["a", "z", "A", "Z", ".a"]
