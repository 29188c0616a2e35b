"""Shares against tables of Clopper and Pearson, Fisher's tea, and exact intervals as SAS prints them."""

from __future__ import annotations

from itertools import product

import pytest
from scipy.stats import binom

from paribus.statistics import Interval, exact_interval, exact_shares, share_difference


def test_exact_interval_of_clopper_and_pearson() -> None:
    assert exact_interval(0, 3) == Interval(0.0, pytest.approx(1 - 0.025 ** (1 / 3)))  # type: ignore[arg-type]
    assert exact_interval(3, 3) == Interval(pytest.approx(0.025 ** (1 / 3)), 1.0)  # type: ignore[arg-type]
    ten = exact_interval(8, 10)
    assert ten is not None
    assert (ten.low, ten.high) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert exact_interval(0, 0) is None
    with pytest.raises(ValueError, match="4 of 3"):
        exact_interval(4, 3)


def test_fishers_tea_tasting() -> None:
    assert exact_shares((3, 4), (1, 4)) == pytest.approx(0.485714, abs=1e-6)
    assert exact_shares((0, 3), (3, 3)) == pytest.approx(0.1)
    assert exact_shares((0, 0), (3, 3)) is None


@pytest.mark.parametrize(
    ("first", "second", "confidence", "low", "high"),
    [
        ((0, 2), (2, 2), 0.90, -1.0, 0.0543),  # Santner and Snell 1980, section 4
        ((40, 78), (5, 17), 0.95, -0.0466, 0.4676),  # SAS, PROC FREQ, EXACT RISKDIFF; R's tern, vignette
        ((27, 57), (3, 3), 0.95, -0.9057, 0.1197),
        ((27, 57), (3, 3), 0.99, -0.9586, 0.2677),
    ],
)
def test_share_difference_as_published(
    first: tuple[int, int], second: tuple[int, int], confidence: float, low: float, high: float
) -> None:
    found = share_difference(first, second, confidence)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_share_difference_turns_with_its_sides_and_needs_trials() -> None:
    found, turned = share_difference((1, 5), (4, 6)), share_difference((4, 6), (1, 5))
    assert found is not None
    assert turned is not None
    assert (found.low, found.high) == pytest.approx((-turned.high, -turned.low), abs=1e-4)
    assert share_difference((0, 0), (3, 3)) is None
    with pytest.raises(ValueError, match="4 of 3"):
        share_difference((4, 3), (0, 3))


def test_share_difference_covers_at_least_as_often_as_it_says() -> None:
    """Every outcome of three against three seeds, weighed by its probability under some true shares."""
    found = {(a, b): share_difference((a, 3), (b, 3), 0.9) for a, b in product(range(4), repeat=2)}
    for first, second in product((0.1, 0.5, 0.8, 1.0), (0.2, 0.5, 1.0)):
        covered = sum(
            binom.pmf(a, 3, first) * binom.pmf(b, 3, second)
            for (a, b), interval in found.items()
            if interval is not None and interval.contains(first - second)
        )
        assert covered >= 0.9 - 1e-9
