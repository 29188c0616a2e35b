"""Scores of single items: paired within a seed, and crossed with seeds.

`differences[s][i]` is one arm less another on item i with seed s. Two questions can be asked of it: what new
seeds would give on these items, and what new seeds would give on new items like these.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Final, Literal

from paribus.statistics.intervals import Estimate, with_error

Estimand = Literal["new_seeds_these_items", "new_seeds_and_items"]

FEWEST_SEEDS: Final = 5
"""Seeds from which a mean is given an interval for new seeds and new items: below, freedom is overestimated.

With 3 seeds of which each differs from the others, 95 % intervals held in 92 % of simulated studies.
"""


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p that two arms are right equally often, from items only one has right.

    Binomial with share 1/2 over the items on which they disagree; 1 where they never do. Source: McNemar
    1947, Psychometrika 12(2); exact form: Agresti 2013, Categorical Data Analysis, section 11.1.
    """
    if min(only_first, only_second) < 0:
        raise ValueError(f"{min(only_first, only_second)} items cannot be right")
    if not only_first + only_second:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(only_first, only_first + only_second, 0.5).pvalue)


def clustered_difference(
    differences: Sequence[float], clusters: Sequence[Hashable], confidence: float = 0.95
) -> Estimate | None:
    """Estimate a mean of paired item differences whose items come in clusters, such as of one passage.

    Residuals are summed within a cluster before they are squared, with G / (G - 1) and t(G - 1) for the G
    clusters, because there may be few. No interval for one cluster. Source: Miller 2024, Adding Error Bars
    to Evals, arXiv:2411.00640, sections 2.2 and 4.2, where G is taken as large.
    """
    if not differences:
        return None
    mean, sums = fmean(differences), dict[Hashable, float]()
    for difference, cluster in zip(differences, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + difference - mean
    n, count = len(differences), len(sums)
    if count < 2:
        return Estimate(n, mean)
    error = sqrt(count / (count - 1) * sum(total**2 for total in sums.values())) / n
    return with_error(n, mean, error, count - 1, confidence)


@dataclass(frozen=True)
class Components:
    """Where paired differences vary: between seeds, between items, and in neither alone.

    Variances in the squared unit of the differences, none below zero; `mean_squares` are those of seeds,
    items and the rest, from which they come.
    """

    seeds: int
    items: int
    mean: float
    mean_squares: tuple[float, float, float]

    @property
    def seed(self) -> float:
        """Return the variance between seeds."""
        return max(0.0, self.mean_squares[0] - self.mean_squares[2]) / self.items

    @property
    def item(self) -> float:
        """Return the variance between items."""
        return max(0.0, self.mean_squares[1] - self.mean_squares[2]) / self.seeds

    @property
    def residual(self) -> float:
        """Return the variance of what neither seed nor item accounts for."""
        return self.mean_squares[2]


def components(differences: Sequence[Sequence[float]]) -> Components:
    """Split the variance of seeds x items by the two-way random-effects analysis of variance.

    At least two seeds and two items, none missing; raises ValueError otherwise. Source: Cornfield and Tukey
    1956, Annals of Mathematical Statistics 27(4).
    """
    seeds, items = len(differences), len(differences[0]) if differences else 0
    if seeds < 2 or items < 2:
        raise ValueError(f"crossed variances need two seeds and two items, not {seeds} and {items}")
    if any(len(row) != items for row in differences):
        raise ValueError("every seed must have every item")
    import numpy as np

    table = np.asarray(differences, dtype=float)
    mean, rows, columns = table.mean(), table.mean(1, keepdims=True), table.mean(0, keepdims=True)
    squares = (
        items * float(((rows - mean) ** 2).sum()) / (seeds - 1),
        seeds * float(((columns - mean) ** 2).sum()) / (items - 1),
        float(((table - rows - columns + mean) ** 2).sum()) / ((seeds - 1) * (items - 1)),
    )
    return Components(seeds, items, float(mean), squares)


def crossed_difference(
    differences: Sequence[Sequence[float]], estimand: Estimand, confidence: float = 0.95
) -> Estimate | None:
    """Estimate the mean of seeds x items for what it is to speak of; n counts seeds.

    For new seeds on these items the error is that of the seeds' means, with t(S - 1). For new seeds and new
    items it is the root of s2_seed / S + s2_item / I + s2_rest / (S I), with Satterthwaite's freedom.
    Fewer than `FEWEST_SEEDS` seeds give it no interval. Nothing for fewer than two seeds or items. Source:
    Clark 1973, J. Verbal Learn. Verbal Behav. 12(4), for why items vary too; Satterthwaite 1946, Biometrics
    Bulletin 2(6).
    """
    if len(differences) < 2 or len(differences[0]) < 2:
        return None
    found = components(differences)
    error, freedom = error_of_mean(found, found.seeds, estimand)
    if estimand == "new_seeds_and_items" and found.seeds < FEWEST_SEEDS:
        return Estimate(found.seeds, found.mean)
    return with_error(found.seeds, found.mean, error, freedom, confidence)


def error_of_mean(found: Components, seeds: int, estimand: Estimand) -> tuple[float, float]:
    """Return the standard error and freedom that a mean over that many seeds and these items would have.

    With the seeds that were run these are its own; with more, those to plan by: however many seeds there are,
    the share of the items stays.
    """
    by_seed, by_item, rest = found.mean_squares
    if seeds != found.seeds:
        by_seed, by_item = rest + found.items * found.seed, rest + seeds * found.item
    terms = [(by_seed, seeds - 1)]
    if estimand == "new_seeds_and_items":
        terms = _terms((by_seed, seeds - 1), (by_item, found.items - 1), rest)
    total = sum(square for square, _ in terms)
    squared = sum(square**2 / freedom for square, freedom in terms)
    freedom = total**2 / squared if squared else float(seeds - 1)
    return sqrt(max(0.0, total) / (seeds * found.items)), freedom


def _terms(by_seed: tuple[float, int], by_item: tuple[float, int], rest: float) -> list[tuple[float, int]]:
    """Return signed mean squares, each with its freedom, whose sum is S I times the variance of the mean.

    Where a variance comes out below zero it is taken as none, and its mean square leaves with the rest's.
    """
    left = (rest, by_seed[1] * by_item[1])
    vary = [term for term in (by_seed, by_item) if term[0] > rest]
    return {0: [left], 1: vary, 2: [*vary, (-rest, left[1])]}[len(vary)]
