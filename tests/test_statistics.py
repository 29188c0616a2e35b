"""Every number is checked against a worked value: a textbook, a table, or algebra done by hand."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.statistics import (
    Interval,
    exact_interval,
    exact_shares,
    holm,
    mean_interval,
    paired_difference,
    tost,
)

# Student's own data: extra hours of sleep under two drugs, ten patients (Biometrika 1908, section IX).
SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]


def test_paired_difference_repeats_students_sleep_data() -> None:
    found = paired_difference(SLEEP)
    assert found is not None
    assert found.interval is not None
    assert found.p is not None
    assert found.mean == pytest.approx(1.58)
    assert (found.interval.low, found.interval.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    assert found.p == pytest.approx(0.00283289, abs=1e-7)


def test_mean_interval_of_three_values_uses_the_table_value_4_303() -> None:
    found = mean_interval([1.0, 2.0, 3.0])
    assert found is not None
    assert found.half_width is not None
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(4.302653 / sqrt(3), abs=1e-5)


def test_one_value_has_a_mean_and_no_interval_and_no_test() -> None:
    for estimate in (mean_interval([1.5]), paired_difference([1.5])):
        assert estimate is not None
        assert (estimate.n, estimate.mean, estimate.interval, estimate.p) == (1, 1.5, None, None)
    assert tost([0.0], 0.1) is None


def test_no_values_give_nothing() -> None:
    assert mean_interval([]) is None
    assert paired_difference([]) is None


def test_differences_that_do_not_vary_are_never_a_division_by_zero() -> None:
    same, shifted = paired_difference([0.0, 0.0, 0.0]), paired_difference([0.5, 0.5])
    assert same is not None
    assert shifted is not None
    assert (same.p, same.interval) == (1.0, Interval(0.0, 0.0))
    assert (shifted.p, shifted.interval) == (None, Interval(0.5, 0.5))
    assert (tost([0.0, 0.0], 0.1), tost([0.5, 0.5], 0.1)) == (0.0, 1.0)


def test_holm_of_a_worked_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([]) == ()
    assert holm([0.6, 0.7]) == (1.0, 1.0)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_never_lowers_a_p_and_keeps_the_order(ps: list[float]) -> None:
    adjusted = holm(ps)
    assert all(p <= q <= 1 for p, q in zip(ps, adjusted, strict=True))
    ranked = [q for _, q in sorted(zip(ps, adjusted, strict=True))]
    assert ranked == sorted(ranked)


def test_tost_agrees_with_the_ninety_percent_interval() -> None:
    differences = [0.01, -0.02, 0.03, 0.00, 0.01]
    ninety = mean_interval(differences, 0.90)
    assert ninety is not None
    assert ninety.interval is not None
    edge = max(abs(ninety.interval.low), abs(ninety.interval.high))
    assert tost(differences, edge) == pytest.approx(0.05, abs=1e-9)
    assert (tost(differences, edge * 1.01) or 1) < 0.05 < (tost(differences, edge * 0.99) or 0)


def test_tost_refuses_a_margin_that_is_not_positive() -> None:
    with pytest.raises(ValueError, match="above 0"):
        tost([0.0, 0.1], 0.0)


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


def test_intervals_know_where_they_lie() -> None:
    band = Interval(-1.0, 1.0)
    assert Interval(-0.5, 0.5).inside(band)
    assert Interval(2.0, 3.0).outside(band)
    assert not Interval(0.5, 3.0).inside(band)
    assert not Interval(0.5, 3.0).outside(band)
    assert band.contains(1.0)
