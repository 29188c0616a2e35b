"""Two one-sided tests, by a published example and by the interval they amount to."""

from __future__ import annotations

import pytest

from paribus.statistics import mean_interval, tost

# The paired differences of Student's sleep data, extra under drug 1 less extra under drug 2.
SLEEP = [-1.2, -2.4, -1.3, -1.3, 0.0, -1.0, -1.8, -0.8, -4.6, -1.4]


def test_tost_of_the_sleep_data_as_toster_prints_it() -> None:
    """R's TOSTER, vignette IntroTOSTt, paired, bounds of half an hour: t(9) = -2.777, p = 0.989."""
    assert tost(SLEEP, 0.5) == pytest.approx(0.989, abs=5e-4)


def test_tost_agrees_with_the_ninety_percent_interval() -> None:
    """Schuirmann 1987: both tests reject at 0.05 exactly where the 90 % interval lies inside the margin."""
    differences = [0.01, -0.02, 0.03, 0.00, 0.01]
    ninety = mean_interval(differences, 0.90)
    assert ninety is not None
    assert ninety.interval is not None
    edge = max(abs(ninety.interval.low), abs(ninety.interval.high))
    assert tost(differences, edge) == pytest.approx(0.05, abs=1e-9)
    assert (tost(differences, edge * 1.01) or 1) < 0.05 < (tost(differences, edge * 0.99) or 0)


def test_tost_of_differences_that_do_not_vary() -> None:
    assert (tost([0.0, 0.0], 0.1), tost([0.5, 0.5], 0.1)) == (0.0, 1.0)
    assert tost([0.0], 0.1) is None


def test_tost_refuses_a_margin_that_is_not_positive() -> None:
    with pytest.raises(ValueError, match="above 0"):
        tost([0.0, 0.1], 0.0)
