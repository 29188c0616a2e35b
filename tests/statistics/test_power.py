"""Power against the values that R, G*Power and PowerTOST print, and against simulated studies."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pytest
from scipy.stats import t as student

from paribus.statistics import (
    equivalence_power,
    pairs_needed,
    pairs_needed_tost,
    power_paired,
    power_tost,
    smallest_difference,
    tost,
)


def test_pairs_needed_as_dalgaard_prints_them() -> None:
    """power.t.test(delta=10, sd=10*sqrt(2), power=0.85, type="paired"): n = 19.97, so 20 pairs.

    Dalgaard 2008, Introductory Statistics with R, section 9.3 (8.3 of the first edition).
    """
    assert pairs_needed(10, 10 * sqrt(2), power=0.85) == 20
    assert power_paired(10, 10 * sqrt(2), 19) < 0.85 <= power_paired(10, 10 * sqrt(2), 20)


def test_power_paired_as_gpower_prints_it() -> None:
    """Faul et al. 2007, G*Power manual, two dependent means: dz = 0.421637, 50 pairs, power 0.832114."""
    assert power_paired(0.421637, 1.0, 50) == pytest.approx(0.832114, abs=1e-5)


@pytest.mark.parametrize(
    ("cv", "ratio", "lowest", "n", "power"),
    [
        (0.125, 0.975, 0.90, 32, 0.800218),  # PowerTOST, README, sampleN.TOST
        (0.10, 0.975, 0.90, 22, 0.81702),  # the same, fixed narrow limits
        (0.20, 0.95, 0.80, 26, 0.9176333),  # the same, pa.ABE
    ],
)
def test_equivalence_power_as_powertost_prints_it(
    cv: float, ratio: float, lowest: float, n: int, power: float
) -> None:
    """A 2x2 crossover on the logarithm: error sqrt(2 / n) * sqrt(log(1 + cv^2)), n - 2 degrees of freedom."""
    error = sqrt(2 / n * log(1 + cv**2))
    found = equivalence_power(-log(lowest), error, n - 2, true_difference=log(ratio))
    assert found == pytest.approx(power, abs=1e-5)


def test_smallest_difference_is_where_power_is_reached() -> None:
    for n, alpha in ((2, 0.05), (3, 0.05), (5, 0.05 / 8), (12, 0.01)):
        least = smallest_difference(0.03, n, alpha)
        assert power_paired(least, 0.03, n, alpha) == pytest.approx(0.8, abs=1e-6)
        assert pairs_needed(least * 1.0001, 0.03, alpha) == n
    assert smallest_difference(0.0, 3) == 0.0


def test_a_true_difference_of_zero_is_found_at_the_nominal_rate() -> None:
    assert power_paired(0.0, 1.0, 4, 0.05) == pytest.approx(0.05)
    assert pairs_needed(0.0, 1.0) is None
    assert pairs_needed_tost(0.02, 1.0, true_difference=0.02) is None


def test_power_of_equivalence_is_what_simulated_studies_show() -> None:
    rng = np.random.default_rng(5)
    margin, sd, n, truth = 0.02, 0.012, 6, 0.004
    made = rng.normal(truth, sd, (20_000, n))
    error = made.std(1, ddof=1) / sqrt(n)
    low = student.ppf(0.95, n - 1) * error
    seen = ((made.mean(1) - low > -margin) & (made.mean(1) + low < margin)).mean()
    assert power_tost(margin, sd, n, 0.05, truth) == pytest.approx(seen, abs=0.01)
    assert (tost(list(made[0]), margin) or 0) < 1  # the same test, on one study


def test_pairs_needed_for_equivalence_are_the_fewest() -> None:
    needed = pairs_needed_tost(0.02, 0.02)
    assert needed is not None
    assert power_tost(0.02, 0.02, needed - 1) < 0.8 <= power_tost(0.02, 0.02, needed)
    assert pairs_needed_tost(0.02, 0.0) == 2
    assert pairs_needed_tost(1e-6, 1.0) is None  # beyond any number of seeds


@pytest.mark.parametrize(("sd", "n", "alpha"), [(-1.0, 3, 0.05), (1.0, 1, 0.05), (1.0, 3, 0.0)])
def test_a_design_that_cannot_be_is_refused(sd: float, n: int, alpha: float) -> None:
    with pytest.raises(ValueError, match=r"must|needs"):
        power_paired(0.1, sd, n, alpha)
