"""Shares of what finished or was right: exact bounds, an exact test and exact bounds of a difference."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from paribus.statistics.intervals import Interval

if TYPE_CHECKING:
    import numpy as np

NUISANCE: Final = 401
"""Values of the second share over which the largest probability is sought."""
PRECISION: Final = 1e-5
"""How finely the ends of the interval of a difference are found."""


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


def share_difference(
    first: tuple[int, int], second: tuple[int, int], confidence: float = 0.95
) -> Interval | None:
    """Bound the first share less the second exactly, each (successes, trials); nothing without trials.

    The tail method: two one-sided exact tests of the plain difference are inverted, each at its largest over
    the unknown second share, so that the interval covers at least as often as it says, at any size. The
    largest is sought on a grid of 401 shares. Source: Santner and Snell 1980, JASA 75(370).
    """
    for successes, trials in (first, second):
        if not 0 <= successes <= trials:
            raise ValueError(f"{successes} of {trials} is no share")
    if not first[1] or not second[1]:
        return None
    tail = (1 - confidence) / 2
    return Interval(-_upper(second, first, tail), _upper(first, second, tail))


def _upper(first: tuple[int, int], second: tuple[int, int], tail: float) -> float:
    """Return the largest difference under which one as low as was seen is no rarer than the tail."""
    low, high = first[0] / first[1] - second[0] / second[1], 1.0
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if _lowest(first, second, middle) > tail else (low, middle)
    return 1.0 if high == 1.0 else (low + high) / 2


def _lowest(first: tuple[int, int], second: tuple[int, int], difference: float) -> float:
    """Return the probability of a difference as low as was seen, the largest over the second share."""
    import numpy as np
    from scipy.stats import binom

    shares = np.linspace(max(0.0, -difference), min(1.0, 1.0 - difference), NUISANCE)
    of_first = np.clip(shares + difference, 0.0, 1.0)
    k = np.arange(second[1] + 1)
    chances = binom.pmf(k[:, None], second[1], shares[None, :])
    below = binom.cdf(_most(first, second)[:, None], first[1], of_first[None, :])
    return float((chances * below).sum(0).max())


@lru_cache(maxsize=64)
def _most(first: tuple[int, int], second: tuple[int, int]) -> np.ndarray:
    """Return, for each count of the second, the largest count of the first that is as low as was seen."""
    import numpy as np

    seen = first[0] * second[1] - second[0] * first[1]  # whole numbers: a tie is a tie
    return np.array([(seen + k * first[1]) // second[1] for k in range(second[1] + 1)])
