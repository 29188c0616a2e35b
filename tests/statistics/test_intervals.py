"""t intervals against Student's own data and tables; the resampled interval against Efron's formula."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import numpy as np
import pytest

from paribus.statistics import Interval, bca_interval, mean_interval, paired_difference

# Student's own data: extra hours of sleep under two drugs, ten patients (Biometrika 1908, section IX).
SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
# Hours between failures of an air conditioner (Davison and Hinkley 1997, Bootstrap Methods, example 1.1).
AIR = [3, 5, 7, 18, 43, 85, 91, 98, 100, 130, 230, 487]


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


def test_no_values_give_nothing() -> None:
    assert mean_interval([]) is None
    assert paired_difference([]) is None


def test_differences_that_do_not_vary_are_never_a_division_by_zero() -> None:
    same, shifted = paired_difference([0.0, 0.0, 0.0]), paired_difference([0.5, 0.5])
    assert same is not None
    assert shifted is not None
    assert (same.p, same.interval) == (1.0, Interval(0.0, 0.0))
    assert (shifted.p, shifted.interval) == (None, Interval(0.5, 0.5))


def test_bca_is_efrons_formula_on_the_air_conditioning_data() -> None:
    """Efron 1987, equation 3.8, with the acceleration 0.0938 that Davison and Hinkley (example 5.8) give."""
    data = np.array(AIR, dtype=float)
    means = np.sort(np.random.default_rng(7).choice(data, (200_000, 12)).mean(1))
    centred = data - data.mean()
    acceleration = (centred**3).sum() / (6 * (centred**2).sum() ** 1.5)
    assert acceleration == pytest.approx(0.0938, abs=5e-5)
    normal = NormalDist()
    bias = normal.inv_cdf(float((means < data.mean()).mean()))
    ends = []
    for z in (normal.inv_cdf(0.025), normal.inv_cdf(0.975)):
        share = normal.cdf(bias + (bias + z) / (1 - acceleration * (bias + z)))
        ends.append(float(means[int(share * len(means))]))
    found = bca_interval(AIR, seed=3)
    assert (found.low, found.high) == pytest.approx(ends, rel=0.03)
    assert found.high - data.mean() > data.mean() - found.low  # skewed as the data are; a t interval is not


def test_bca_repeats_itself_and_is_refused_to_fewer_than_twelve() -> None:
    assert bca_interval(AIR, seed=1) == bca_interval(AIR, seed=1) != bca_interval(AIR, seed=2)
    with pytest.raises(ValueError, match="11 values are too few"):
        bca_interval(AIR[:11])
    with pytest.raises(ValueError, match="do not vary"):
        bca_interval([0.5] * 12)


def test_intervals_know_where_they_lie() -> None:
    band = Interval(-1.0, 1.0)
    assert Interval(-0.5, 0.5).inside(band)
    assert Interval(2.0, 3.0).outside(band)
    assert not Interval(0.5, 3.0).inside(band)
    assert not Interval(0.5, 3.0).outside(band)
    assert band.contains(1.0)
