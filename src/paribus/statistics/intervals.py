"""Means of few repeats with t intervals, and a resampled interval where there are enough pairs for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from paribus.statistics.student import t_quantile, t_tail


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
    half = t_quantile((1 + confidence) / 2, len(values) - 1) * stdev(values) / sqrt(len(values))
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
    p = 2 * t_tail(abs(estimate.mean) / spread, estimate.n - 1)
    return Estimate(estimate.n, estimate.mean, estimate.interval, min(p, 1.0))
