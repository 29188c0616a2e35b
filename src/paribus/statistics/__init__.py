"""Pure functions of numbers: intervals, tests, power and groups, for the few repeats that training allows.

At three to ten seeds resampling cannot work (a sign-flip test of three pairs never goes below p = 0.25),
so what is said of them is a t statistic or exact. What cannot be computed is absent: one value has a mean
and no interval, and never a NaN. scipy is loaded when the first number is asked for.
"""

from paribus.statistics.effects import Effect, interactions, main_effects
from paribus.statistics.equivalence import tost, tost_of
from paribus.statistics.intervals import (
    BCA_FROM,
    Estimate,
    Interval,
    bca_interval,
    mean_interval,
    paired_difference,
)
from paribus.statistics.items import (
    FEWEST_SEEDS,
    Components,
    Estimand,
    clustered_difference,
    components,
    crossed_difference,
    error_of_mean,
    mcnemar,
)
from paribus.statistics.multiple import holm, holm_within
from paribus.statistics.power import (
    POWER,
    difference_power,
    equivalence_power,
    fewest_pairs,
    pairs_needed,
    pairs_needed_tost,
    power_paired,
    power_tost,
    smallest_difference,
    smallest_shift,
)
from paribus.statistics.shares import exact_interval, exact_shares, share_difference
from paribus.statistics.ties import Ties, binomial_error, binomial_ties, compact_letters, tie_groups

__all__ = [
    "BCA_FROM",
    "FEWEST_SEEDS",
    "POWER",
    "Components",
    "Effect",
    "Estimand",
    "Estimate",
    "Interval",
    "Ties",
    "bca_interval",
    "binomial_error",
    "binomial_ties",
    "clustered_difference",
    "compact_letters",
    "components",
    "crossed_difference",
    "difference_power",
    "equivalence_power",
    "error_of_mean",
    "exact_interval",
    "exact_shares",
    "fewest_pairs",
    "holm",
    "holm_within",
    "interactions",
    "main_effects",
    "mcnemar",
    "mean_interval",
    "paired_difference",
    "pairs_needed",
    "pairs_needed_tost",
    "power_paired",
    "power_tost",
    "share_difference",
    "smallest_difference",
    "smallest_shift",
    "tie_groups",
    "tost",
    "tost_of",
]
