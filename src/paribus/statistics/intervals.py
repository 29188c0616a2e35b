"""Means of few repeats with t intervals, and a resampled interval where there are enough pairs for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import fmean, stdev
from typing import Final

from paribus.statistics.student import t_quantile, t_tail

BCA_FROM: Final = 12
"""Pairs from which a resampled interval is offered: with fewer its ends are those of a few values."""
RESAMPLES: Final = 9999


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
    """A mean of `n` values; the interval is absent for one value, `p` where no test was asked or possible.

    `error` is the standard error that interval and p rest on, with its degrees of freedom.
    """

    n: int
    mean: float
    interval: Interval | None = None
    p: float | None = None
    error: float | None = field(default=None, compare=False, repr=False)
    freedom: float | None = field(default=None, compare=False, repr=False)

    @property
    def half_width(self) -> float | None:
        """Return half the length of the interval, as printed after ±."""
        return None if self.interval is None else (self.interval.high - self.interval.low) / 2


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate | None:
    """Estimate a mean with its t interval: mean ± t(n - 1) * s / sqrt(n).

    Nothing for no values; no interval for one. Source: Student 1908, Biometrika 6(1).
    """
    found = paired_difference(values, confidence)
    return replace(found, p=None) if found else None


def paired_difference(differences: Sequence[float], confidence: float = 0.95) -> Estimate | None:
    """Estimate a mean of paired differences with its t interval and two-sided p against zero.

    Where the differences do not vary the test has no scale: p is 1 if they are all zero and absent otherwise.
    Source: Student 1908; one value of `differences` is one pair.
    """
    n = len(differences)
    if n < 2:
        return Estimate(n, fmean(differences)) if n else None
    return with_error(n, fmean(differences), stdev(differences) / sqrt(n), n - 1, confidence)


def with_error(n: int, mean: float, error: float, freedom: float, confidence: float) -> Estimate:
    """Return a mean of known standard error with its t interval and two-sided p against zero.

    Without error there is no scale to test on: p is 1 if the mean is zero and absent otherwise.
    """
    half = t_quantile((1 + confidence) / 2, freedom) * error
    p = min(1.0, 2 * t_tail(abs(mean) / error, freedom)) if error else (None if mean else 1.0)
    return Estimate(n, mean, Interval(mean - half, mean + half), p, error, freedom)


def bca_interval(values: Sequence[float], confidence: float = 0.95, seed: int = 0) -> Interval:
    """Return the bias-corrected and accelerated bootstrap interval of a mean; the same seed, the same ends.

    For at least 12 values, so that it can be read beside a t interval where these are skewed. Raises
    ValueError for fewer, and for values that do not vary. Source: Efron 1987, JASA 82(397), section 4.
    """
    if len(values) < BCA_FROM:
        raise ValueError(f"{len(values)} values are too few to resample: a BCa interval needs {BCA_FROM}")
    if min(values) == max(values):
        raise ValueError("values that do not vary cannot be resampled")
    import numpy as np
    from scipy.stats import bootstrap

    rng = np.random.default_rng(seed)
    found = bootstrap(
        (np.asarray(values, dtype=float),), np.mean,
        n_resamples=RESAMPLES, confidence_level=confidence, method="BCa", rng=rng,
    ).confidence_interval  # fmt: skip
    return Interval(float(found.low), float(found.high))
