"""Pure functions of numbers: intervals, tests and equivalence, for the few repeats that training allows.

At three to ten seeds resampling cannot work (a sign-flip test of three pairs never goes below p = 0.25),
so what is said of them is a t statistic or exact. What cannot be computed is absent: one value has a mean
and no interval, and never a NaN. scipy is loaded when the first number is asked for.
"""

from paribus.statistics.equivalence import tost
from paribus.statistics.intervals import Estimate, Interval, mean_interval, paired_difference
from paribus.statistics.multiple import holm
from paribus.statistics.shares import exact_interval, exact_shares

__all__ = [
    "Estimate",
    "Interval",
    "exact_interval",
    "exact_shares",
    "holm",
    "mean_interval",
    "paired_difference",
    "tost",
]
