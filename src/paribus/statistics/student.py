"""Student's t distribution; scipy is loaded when the first number is asked for."""

from __future__ import annotations


def t_quantile(share: float, freedom: float) -> float:
    """Return the value that a t variable stays below with the given probability."""
    from scipy.stats import t

    return float(t.ppf(share, freedom))


def t_tail(statistic: float, freedom: float) -> float:
    """Return the probability that a t variable exceeds a value."""
    from scipy.stats import t

    return float(t.sf(statistic, freedom))
