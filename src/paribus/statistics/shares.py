"""Shares of what finished or was right: exact bounds and an exact test."""

from __future__ import annotations

from paribus.statistics.intervals import Interval


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
