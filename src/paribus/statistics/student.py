"""Student's t distribution; scipy is loaded when the first number is asked for, and of it the least."""

from __future__ import annotations


def t_quantile(share: float, freedom: float) -> float:
    """Return the value that a t variable stays below with the given probability."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


def t_tail(statistic: float, freedom: float) -> float:
    """Return the probability that a t variable exceeds a value."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -statistic))
