"""What a design can see: the power of the paired t test and of equivalence, and what each needs.

`sd` is the standard deviation of the paired differences, in the unit of the difference; `n` counts pairs.
In a family of m contrasts under Holm, take alpha / m: the first step of Holm, so that what is promised holds
wherever a contrast stands in its family.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import erfc, exp, inf, lgamma, log, sqrt
from typing import Final

from paribus.statistics.student import t_quantile

POWER: Final = 0.8
MOST_PAIRS: Final = 10_000
"""Where the search for enough pairs ends."""


def power_paired(difference: float, sd: float, n: int, alpha: float = 0.05) -> float:
    """Return the probability that a true difference is found by a two-sided paired t test."""
    _checked(sd, n, alpha)
    return difference_power(difference, sd / sqrt(n), n - 1, alpha)


def difference_power(difference: float, error: float, freedom: float, alpha: float = 0.05) -> float:
    """Return the power of a two-sided t test for an estimate of known standard error.

    P(|T| > t(1 - alpha / 2)) for a noncentral T of noncentrality difference / error; the far tail counts.
    Source: Cohen 1988, Statistical Power Analysis, section 2; Owen 1968, Technometrics 10(3).
    """
    if error == 0:
        return 1.0 if difference else alpha
    bound, shift = t_quantile(1 - alpha / 2, freedom), abs(difference) / error

    def found(u: float) -> float:
        return _normal(shift - bound * u) + _normal(-shift - bound * u)

    return _over_errors(found, freedom, shift / bound)


def smallest_difference(sd: float, n: int, alpha: float = 0.05, power: float = POWER) -> float:
    """Return the smallest true difference that is found with the given power; zero where nothing varies."""
    _checked(sd, n, alpha)
    return sd / sqrt(n) * smallest_shift(n - 1, alpha, power)


@lru_cache(maxsize=512)
def smallest_shift(freedom: float, alpha: float = 0.05, power: float = POWER) -> float:
    """Return the same in standard errors of the estimate, which is all that the search depends on."""
    if not alpha < power < 1:
        raise ValueError(f"a power must lie between alpha {alpha:g} and 1, not be {power:g}")
    from scipy.optimize import brentq

    def missing(shift: float) -> float:
        return difference_power(shift, 1.0, freedom, alpha) - power

    high = 1.0
    while missing(high) < 0:
        high *= 2
    return float(brentq(missing, 0.0, high))  # pyright: ignore[reportArgumentType]


def pairs_needed(difference: float, sd: float, alpha: float = 0.05, power: float = POWER) -> int | None:
    """Return the fewest pairs with which a true difference is found; None where no number would do."""
    if difference == 0:
        return None
    return fewest_pairs(lambda n: power_paired(difference, sd, n, alpha), power)


def power_tost(margin: float, sd: float, n: int, alpha: float = 0.05, true_difference: float = 0.0) -> float:
    """Return the probability that two one-sided paired t tests show equivalence within ±margin."""
    _checked(sd, n, alpha)
    return equivalence_power(margin, sd / sqrt(n), n - 1, alpha, true_difference)


def equivalence_power(
    margin: float, error: float, freedom: float, alpha: float = 0.05, true_difference: float = 0.0
) -> float:
    """Return the exact power of two one-sided t tests for an estimate of known standard error.

    Given the estimated error u * error, the estimate must lie within ±(margin - t * u * error); this is
    integrated over the distribution of u, chi / sqrt(freedom), which is what Owen's Q does in closed form.
    Source: Phillips 1990, J. Pharmacokinet. Biopharm. 18(2); Owen 1965, Biometrika 52(3-4).
    """
    if margin <= 0:
        raise ValueError(f"an equivalence margin must be above 0, not {margin}")
    if error == 0:
        return 1.0 if abs(true_difference) < margin else 0.0
    bound, shift = t_quantile(1 - alpha, freedom), true_difference / error
    widest = margin / (bound * error)

    def shown(u: float) -> float:
        room = margin / error - bound * u
        return _normal(room - shift) - _normal(-room - shift) if u < widest else 0.0

    return _over_errors(shown, freedom, widest)


def _over_errors(chance: Callable[[float], float], freedom: float, turn: float) -> float:
    """Average a chance over the ratio u of an estimated to the true error, which is chi / sqrt(freedom).

    `turn` is the ratio near which the chance falls off. (scipy's noncentral t has no digits in its far tail.)
    """
    from scipy.integrate import quad

    half, wide = freedom / 2, 1 / sqrt(2 * freedom)
    constant = log(2) + half * log(half) - lgamma(half)

    def weighed(u: float) -> float:
        return chance(u) * exp(constant + (freedom - 1) * log(u) - half * u * u) if u > 0 else 0.0

    low, high = max(0.0, 1 - 10 * wide), 1 + 10 * wide  # nothing is left to add beyond
    points = [point for point in (turn, 1.0) if low < point < high]
    return min(1.0, float(quad(weighed, low, high, points=points, limit=200)[0]))


def _normal(z: float) -> float:
    """Return the probability that a normal variable stays below z."""
    return erfc(-z / sqrt(2)) / 2


def pairs_needed_tost(
    margin: float, sd: float, alpha: float = 0.05, power: float = POWER, true_difference: float = 0.0
) -> int | None:
    """Return the fewest pairs with which equivalence is shown; None where no number would do."""
    if abs(true_difference) >= margin:
        return None
    return fewest_pairs(lambda n: power_tost(margin, sd, n, alpha, true_difference), power)


def fewest_pairs(reached: Callable[[int], float], power: float = POWER) -> int | None:
    """Find the fewest pairs, at least two, at which a power that grows with them is reached.

    None where 10,000 are not enough.
    """
    low, high = 1, 2
    while reached(high) < power:
        low, high = high, 2 * high
        if high > MOST_PAIRS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) >= power else (middle, high)
    return high


def _checked(sd: float, n: int, alpha: float) -> None:
    if not 0 <= sd < inf:
        raise ValueError(f"a standard deviation must be at least 0, not {sd}")
    if n < 2:
        raise ValueError(f"a paired test needs two pairs, not {n}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, not be {alpha}")
