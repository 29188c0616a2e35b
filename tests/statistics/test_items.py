"""Per-item statistics against printed examples: McNemar, a cluster sample, and two-way random effects."""

from __future__ import annotations

from math import sqrt
from statistics import stdev

import numpy as np
import pytest
from scipy.stats import t as student

from paribus.statistics import (
    clustered_difference,
    components,
    crossed_difference,
    error_of_mean,
    mcnemar,
    mean_interval,
)

# Shrout and Fleiss 1979, Psychological Bulletin 86(2), table 2: six targets, four judges.
JUDGED = ((9, 2, 5, 8), (6, 1, 3, 2), (8, 4, 6, 8), (7, 1, 2, 6), (10, 5, 6, 9), (6, 2, 4, 7))
# Lohr 2010, Sampling: Design and Analysis, example 5.2: grades of five suites of four students.
SUITES = (
    (3.08, 2.60, 3.44, 3.04), (2.36, 3.04, 3.28, 2.68), (2.00, 2.56, 2.52, 1.88),
    (3.00, 2.88, 3.44, 3.64), (2.68, 1.92, 3.28, 3.20),
)  # fmt: skip


def test_mcnemar_as_exact2x2_prints_it() -> None:
    """R's exact2x2 (Fay 2010), mcnemar.exact of 21, 9, 2, 12: nine against two, p = 0.06543."""
    assert mcnemar(9, 2) == pytest.approx(0.06543, abs=5e-6)
    assert mcnemar(2, 9) == mcnemar(9, 2)
    assert (mcnemar(0, 0), mcnemar(5, 0)) == (1.0, pytest.approx(2 / 2**5))
    with pytest.raises(ValueError, match="-1"):
        mcnemar(-1, 3)


def test_clustered_error_of_lohrs_suites() -> None:
    """The book: mean 2.826 with error 0.164, of which sqrt(1 - 5 / 100) is for the finite population."""
    grades = [grade for suite in SUITES for grade in suite]
    clusters = [number for number, suite in enumerate(SUITES) for _ in suite]
    found = clustered_difference(grades, clusters)
    assert found is not None
    assert found.half_width is not None
    error = found.half_width / student.ppf(0.975, 4)
    assert found.mean == pytest.approx(2.826)
    assert error * sqrt(1 - 5 / 100) == pytest.approx(0.164, abs=5e-4)
    assert error * sqrt(1 - 5 / 100) == pytest.approx(sqrt(0.95 * 2.256 / (5 * 4**2)), abs=5e-5)


def test_clusters_of_one_item_are_the_plain_paired_interval() -> None:
    differences = [0.3, -0.1, 0.4, 0.2, 0.0]
    plain, clustered = mean_interval(differences), clustered_difference(differences, range(5))
    assert plain is not None
    assert clustered is not None
    assert clustered.half_width == pytest.approx(plain.half_width)


def test_items_that_move_together_count_once() -> None:
    """Four copies of each item are no more evidence than the items; Miller 2024, section 2.2."""
    once = clustered_difference([0.3, -0.1, 0.4], "abc")
    copied = clustered_difference([0.3, -0.1, 0.4] * 4, "abc" * 4)
    assert once is not None
    assert copied is not None
    assert copied.half_width == pytest.approx(once.half_width)
    alone = clustered_difference([0.3, 0.1], "aa")
    assert alone is not None
    assert alone.interval is None
    assert clustered_difference([], []) is None


def test_components_of_shrout_and_fleiss() -> None:
    """Table 3: mean squares 11.24, 32.49 and 1.02; the text's ICC(2, 1) is 0.29."""
    found = components(JUDGED)
    assert found.mean_squares == pytest.approx((11.24, 32.49, 1.02), abs=5e-3)
    assert found.seed / (found.seed + found.item + found.residual) == pytest.approx(0.29, abs=5e-3)


def test_new_seeds_on_these_items_are_the_interval_of_the_seeds_means() -> None:
    found = crossed_difference(JUDGED, "new_seeds_these_items")
    means = mean_interval([sum(row) / 4 for row in JUDGED])
    assert found is not None
    assert means is not None
    assert (found.n, found.mean, found.half_width) == pytest.approx((6, means.mean, means.half_width))


def test_new_items_too_widen_the_interval_by_their_variance() -> None:
    """The error is sqrt(2.556 / 6 + 5.244 / 4 + 1.019 / 24), on Satterthwaite's 4.1 degrees of freedom."""
    found, parts = crossed_difference(JUDGED, "new_seeds_and_items"), components(JUDGED)
    narrow = crossed_difference(JUDGED, "new_seeds_these_items")
    assert found is not None
    assert narrow is not None
    assert found.half_width is not None
    assert narrow.half_width is not None
    error = sqrt(parts.seed / 6 + parts.item / 4 + parts.residual / 24)
    a, b, c = parts.mean_squares
    freedom = (a + b - c) ** 2 / (a**2 / 5 + b**2 / 3 + c**2 / 15)
    assert (parts.seed, parts.item) == pytest.approx((2.556, 5.244), abs=1e-3)
    assert freedom == pytest.approx(4.83, abs=0.05)
    assert found.half_width == pytest.approx(float(student.ppf(0.975, freedom)) * error)
    assert found.half_width > narrow.half_width


def test_a_variance_below_zero_is_none() -> None:
    """Items that differ in sign by seed, and nothing else: both variances come out negative."""
    found = components([[1.0, -1.0], [-1.0, 1.0]])
    assert (found.seed, found.item, found.residual) == (0.0, 0.0, 4.0)
    assert error_of_mean(found, 2, "new_seeds_and_items") == pytest.approx((sqrt(4 / 4), 1))


def test_few_seeds_have_no_interval_for_new_items() -> None:
    """At four of them the freedom is overestimated; the mean stays, and the interval for new seeds."""
    few, enough = JUDGED[:4], JUDGED[:5]
    refused, given = (crossed_difference(table, "new_seeds_and_items") for table in (few, enough))
    assert refused is not None and given is not None and given.interval is not None
    assert (refused.n, refused.interval, refused.p, refused.error) == (4, None, None, None)
    narrow = crossed_difference(few, "new_seeds_these_items")
    assert narrow is not None and narrow.interval is not None


def test_the_crossed_interval_covers_new_seeds_and_items() -> None:
    """Two thousand drawn studies of 5 seeds and 20 items, each with seeds and items of its own."""
    rng, covered, narrow = np.random.default_rng(11), 0, 0
    for _ in range(2000):
        drawn = (
            rng.normal(0, 0.3, (5, 1)) + rng.normal(0, 1.0, (1, 20)) + rng.normal(0, 0.5, (5, 20))
        ).tolist()
        for_both = crossed_difference(drawn, "new_seeds_and_items")
        for_seeds = crossed_difference(drawn, "new_seeds_these_items")
        covered += for_both is not None and for_both.interval is not None and for_both.interval.contains(0)
        narrow += for_seeds is not None and for_seeds.interval is not None and for_seeds.interval.contains(0)
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)
    assert narrow / 2000 < 0.9  # it never meant to speak of other items


@pytest.mark.parametrize("bad", [[], [[1.0, 2.0]], [[1.0], [2.0]], [[1.0, 2.0], [1.0]]])
def test_what_is_not_crossed_is_refused(bad: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=r"need|every"):
        components(bad)


def test_a_spread_of_one_seed_has_no_crossed_interval() -> None:
    assert crossed_difference([[0.1, 0.2, 0.3]], "new_seeds_and_items") is None
    assert stdev([0.1, 0.2, 0.3]) > 0
