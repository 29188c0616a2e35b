"""Looking after every pair errs as often as it says; a fixed interval read as often would not."""

import numpy as np
import pytest
from scipy.stats import t

from paribus.statistics import Interval, mean_interval, paired_difference, tost
from paribus.statistics.sequential import Looks

LOOKS = Looks(3, 12)
STUDIES = 40_000


def statistics_of(values: np.ndarray, looks: Looks) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard error at every look of every row."""
    n = np.arange(1, values.shape[1] + 1)
    means = values.cumsum(1) / n
    squares = (values**2).cumsum(1) - n * means**2
    at = slice(looks.first - 1, looks.last)
    return means[:, at], np.sqrt(squares[:, at] / (n[at] - 1) / n[at])


@pytest.fixture(scope="module")
def null() -> tuple[np.ndarray, np.ndarray]:
    return statistics_of(np.random.default_rng(20261201).standard_normal((STUDIES, LOOKS.last)), LOOKS)


def boundary(level: float, looks: Looks = LOOKS) -> np.ndarray:
    return np.array([looks.critical(n, level) for n in range(looks.first, looks.last + 1)])


@pytest.mark.parametrize("level", [0.2, 0.05, 0.01])
def test_some_look_errs_as_often_as_the_level_says(null, level):
    means, errors = null
    share = (means / errors > boundary(level)).any(1).mean()
    assert share == pytest.approx(level, abs=4 * np.sqrt(level / STUDIES))


def test_the_error_is_spent_as_planned(null):
    means, errors = null
    passed = np.logical_or.accumulate(means / errors > boundary(0.05), axis=1).mean(0)
    planned = [0.05 * LOOKS.spent(n) for n in range(LOOKS.first, LOOKS.last + 1)]
    assert passed == pytest.approx(planned, abs=4 * np.sqrt(0.05 / STUDIES))
    assert planned[-1] == pytest.approx(0.05)


def test_a_fixed_interval_read_as_often_errs_far_more(null):
    means, errors = null
    freedom = np.arange(LOOKS.first, LOOKS.last + 1) - 1
    assert (np.abs(means / errors) > t.ppf(0.975, freedom)).any(1).mean() > 0.15


def test_repeated_intervals_hold_after_every_look_at_once(null):
    means, errors = null
    held = (np.abs(means) <= boundary(0.025) * errors).all(1).mean()
    assert held == pytest.approx(0.95, abs=0.005)


def test_looking_less_often_errs_less_often(null):
    means, errors = null
    seldom = [0, 4, 9]
    share = (np.abs(means / errors) > boundary(0.025))[:, seldom].any(1).mean()
    assert 0.03 < share < 0.05


def test_equality_at_the_margin_is_claimed_at_most_as_often_as_the_level_says(null):
    means, errors = null
    for spread in (0.3, 1.0, 3.0):
        inside = (np.abs(means * spread + 1) + boundary(0.05) * errors * spread < 1).any(1)
        assert inside.mean() <= 0.05 + 4 * np.sqrt(0.05 / STUDIES)


def test_one_look_alone_is_the_t_test():
    values = [0.4, -0.1, 0.9, 1.3, 0.2, 0.7, 0.5, 1.1]
    once, plain = Looks(8, 8).difference(values), paired_difference(values)
    assert once and plain and once.interval and plain.interval and plain.p
    assert once.p == pytest.approx(plain.p, rel=1e-3)
    assert once.interval.low == pytest.approx(plain.interval.low, rel=1e-3)
    assert Looks(8, 8).tost(values, 2.0) == pytest.approx(tost(values, 2.0), rel=1e-3)


@pytest.mark.parametrize("n", [3, 4, 7, 12])
def test_boundaries_rise_as_the_level_falls_so_that_holm_can_pass_level_on(n):
    levels = np.geomspace(1e-6, 0.4, 60)
    assert (np.diff([LOOKS.critical(n, level) for level in levels]) < 0).all()


@pytest.mark.parametrize(("n", "mean"), [(3, 20), (5, 3), (12, 0.8)])
def test_p_and_interval_say_the_same(n, mean):
    values = list(np.random.default_rng(n).normal(mean, 1, n))
    p = LOOKS.difference(values).p
    assert 0 < p < 0.5
    for confidence, leaves_out in ((1 - p * 1.01, True), (1 - p * 0.99, False)):
        assert LOOKS.difference(values, confidence).interval.contains(0) is not leaves_out


def test_p_of_equality_and_interval_say_the_same():
    values = list(np.random.default_rng(1).normal(0.1, 1, 9))
    p = LOOKS.tost(values, 1.2)
    assert 0 < p < 0.5
    for share, is_inside in ((p * 1.01, True), (p * 0.99, False)):
        interval = LOOKS.mean(values, 1 - 2 * share).interval
        assert interval.inside(Interval(-1.2, 1.2)) is is_inside


def test_the_interval_is_wider_than_one_that_is_read_once():
    values = [0.4, -0.1, 0.9, 1.3, 0.2]
    assert LOOKS.mean(values).half_width > 1.5 * mean_interval(values).half_width


def test_what_cannot_be_computed_is_absent():
    assert LOOKS.mean([]) is None
    assert LOOKS.difference([0.1, 0.2]).interval is None and LOOKS.tost([0.1, 0.2], 1) is None
    assert LOOKS.difference([0.0] * 4).p == 1.0 and LOOKS.difference([0.1] * 4).p is None
    assert LOOKS.tost([0.1] * 4, 0.2) == 0.0 and LOOKS.tost([0.3] * 4, 0.2) == 1.0
    with pytest.raises(ValueError, match="no look at 13"):
        LOOKS.mean([0.1 * i for i in range(13)])
    with pytest.raises(ValueError, match="at least 2"):
        Looks(1, 5)
    with pytest.raises(ValueError, match="above 0"):
        LOOKS.tost([0.1, 0.2, 0.3], 0)


def test_no_p_is_given_below_what_is_told_apart():
    values = [1 + 1e-9 * i for i in range(12)]
    assert LOOKS.difference(values).p == pytest.approx(2e-7)
