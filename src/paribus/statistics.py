"""Pure functions of numbers: intervals, tests and equivalence, for the few repeats that training allows.

At three to ten seeds resampling cannot work (a sign-flip test of three pairs never goes below p = 0.25),
so everything here is a t statistic or exact. What cannot be computed is absent: one value has a mean and no
interval, and never a NaN. scipy is loaded when the first number is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev


@dataclass(frozen=True)
class Interval:
    """A confidence interval, both ends in the unit of what it is about."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Say whether a value lies in the interval, ends included."""
        return self.low <= value <= self.high

    def inside(self, other: Interval) -> bool:
        """Say whether the whole interval lies in another, ends included."""
        return other.low <= self.low and self.high <= other.high

    def outside(self, other: Interval) -> bool:
        """Say whether the interval and another have no value in common."""
        return self.high < other.low or other.high < self.low


@dataclass(frozen=True)
class Estimate:
    """A mean of `n` values; the interval is absent for one value, `p` where no test was asked or possible."""

    n: int
    mean: float
    interval: Interval | None = None
    p: float | None = None

    @property
    def half_width(self) -> float | None:
        """Return half the length of the interval, as printed after ±."""
        return None if self.interval is None else (self.interval.high - self.interval.low) / 2


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate | None:
    """Estimate a mean with its t interval: mean ± t(n - 1) * s / sqrt(n).

    Nothing for no values; no interval for one. Source: Student 1908, Biometrika 6(1).
    """
    if not values:
        return None
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(len(values), mean)
    half = _t_quantile((1 + confidence) / 2, len(values) - 1) * stdev(values) / sqrt(len(values))
    return Estimate(len(values), mean, Interval(mean - half, mean + half))


def paired_difference(differences: Sequence[float], confidence: float = 0.95) -> Estimate | None:
    """Estimate a mean of paired differences with its t interval and two-sided p against zero.

    Where the differences do not vary the test has no scale: p is 1 if they are all zero and absent otherwise.
    Source: Student 1908; one value of `differences` is one pair.
    """
    estimate = mean_interval(differences, confidence)
    if estimate is None or estimate.n < 2:
        return estimate
    spread = stdev(differences) / sqrt(estimate.n)
    if spread == 0:
        return Estimate(estimate.n, estimate.mean, estimate.interval, None if estimate.mean else 1.0)
    p = 2 * _t_tail(abs(estimate.mean) / spread, estimate.n - 1)
    return Estimate(estimate.n, estimate.mean, estimate.interval, min(p, 1.0))


def holm(ps: Sequence[float]) -> tuple[float, ...]:
    """Adjust the p values of one family so that any false positive has the stated probability.

    The i-th smallest of m is multiplied by m - i + 1, then made monotone and capped at 1.
    Source: Holm 1979, Scandinavian Journal of Statistics 6(2).
    """
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted, running = [0.0] * len(ps), 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = running
    return tuple(adjusted)


def tost(differences: Sequence[float], margin: float) -> float | None:
    """Return the p of "the mean difference is outside ±margin": small means equivalent at that margin.

    The larger of two one-sided t tests; absent for fewer than two pairs. At level 0.05 it agrees with the
    90 % t interval lying inside ±margin. Source: Schuirmann 1987, J. Pharmacokinet. Biopharm. 15(6).
    """
    if margin <= 0:
        raise ValueError(f"an equivalence margin must be above 0, not {margin}")
    if len(differences) < 2:
        return None
    mean, spread = fmean(differences), stdev(differences) / sqrt(len(differences))
    if spread == 0:
        return 0.0 if abs(mean) < margin else 1.0
    freedom = len(differences) - 1
    return max(_t_tail((margin + mean) / spread, freedom), _t_tail((margin - mean) / spread, freedom))


def exact_interval(successes: int, trials: int, confidence: float = 0.95) -> Interval | None:
    """Bound a share of `successes` in `trials` exactly; nothing for no trials.

    Source: Clopper and Pearson 1934, Biometrika 26(4).
    """
    from scipy.stats import beta

    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} is no share")
    if trials == 0:
        return None
    tail, failures = (1 - confidence) / 2, trials - successes
    low = 0.0 if successes == 0 else float(beta.ppf(tail, successes, failures + 1))
    high = 1.0 if failures == 0 else float(beta.ppf(1 - tail, successes + 1, failures))
    return Interval(low, high)


def exact_shares(first: tuple[int, int], second: tuple[int, int]) -> float | None:
    """Return the two-sided p that two shares, each (successes, trials), are the same; nothing without trials.

    Source: Fisher 1922, Journal of the Royal Statistical Society 85(1).
    """
    from scipy.stats import fisher_exact

    if not first[1] or not second[1]:
        return None
    table = [[first[0], first[1] - first[0]], [second[0], second[1] - second[0]]]
    return float(fisher_exact(table).pvalue)  # pyright: ignore[reportAttributeAccessIssue]


def _t_quantile(share: float, freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf(share, freedom))


def _t_tail(statistic: float, freedom: int) -> float:
    from scipy.stats import t

    return float(t.sf(statistic, freedom))
