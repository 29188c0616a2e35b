"""What a design could have seen: the smallest difference, and the seeds that equivalence would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final

from paribus import statistics

if TYPE_CHECKING:
    from paribus.compare.contrast import Contrast, Rules
    from paribus.statistics import Estimand, Estimate

POWER: Final = f"{statistics.POWER:.0%}".replace("%", "\u00a0%")

ErrorAt = Callable[[int], tuple[float, float]]
"""The standard error of a mean difference, and its freedom, at a number of seeds."""


@dataclass(frozen=True)
class Seen:
    """At 80 % power, the smallest true difference that would be found, in the metric's unit.

    `seeds` are those with which equivalence at the study's margin would be shown if there were no difference;
    absent where no margin is declared, and where 10,000 would not do (then `beyond`).
    """

    smallest: float
    seeds: int | None = None
    beyond: bool = False

    @property
    def seeds_text(self) -> str | None:
        """Write the seeds as a reader sees them."""
        return ">\u00a010,000" if self.beyond else None if self.seeds is None else f"{self.seeds:,}"


def seen(contrast: Contrast, rules: Rules) -> Seen | None:
    """Say what a contrast could have seen, from the spread of its own differences.

    The error rate is alpha over the contrasts of its family, as Holm's first step has it; that of equivalence
    is alpha, as in the verdict. Nothing for one pair, and for a study that adds seeds until all is decided.
    """
    could, needs = (
        smallest(contrast.difference, rules.alpha / max(1, contrast.tested)),
        error_at(contrast, rules.estimand),
    )
    if could is None or needs is None:
        return None
    if rules.margin is None:
        return Seen(could)
    seeds = seeds_for(rules.margin, needs, rules.alpha)
    return Seen(could, seeds, beyond=seeds is None)


def smallest(found: Estimate | None, alpha: float) -> float | None:
    """Return the smallest true difference that an estimate of such an error would have found."""
    if found is None or found.error is None or found.freedom is None:
        return None
    return found.error * statistics.smallest_shift(found.freedom, alpha)


def error_at(contrast: Contrast, estimand: Estimand) -> ErrorAt | None:
    """Return what the standard error of a contrast would be with other numbers of seeds, and its freedom."""
    found, parts = contrast.difference, contrast.parts
    if found is None or found.error is None:
        return None
    if parts is not None:
        return lambda seeds: statistics.error_of_mean(parts, seeds, estimand)
    return spread(found.error * sqrt(found.n))


def spread(sd: float) -> ErrorAt:
    """Return the standard error of a mean of seeds that differ by a standard deviation, and its freedom."""
    return lambda seeds: (sd / sqrt(seeds), seeds - 1.0)


def seeds_for(margin: float, error_at: ErrorAt, alpha: float) -> int | None:
    """Return the fewest seeds with which equivalence is shown, if nothing differs; None beyond 10,000."""
    return statistics.fewest_pairs(
        lambda seeds: statistics.equivalence_power(margin, *error_at(seeds), alpha)
    )


def note(rules: Rules, seeds: bool = True) -> str:
    """Say under a table what its columns on power mean."""
    said = (
        f" Could see: the smallest true difference found with {POWER} power at the spread of the row's own "
        "differences, alpha shared by its family."
    )
    if not seeds or rules.margin is None:
        return said
    return (
        f"{said} Seeds for ±{rules.margin:g}: those with which equivalence would be shown, at that power, if "
        "there is no difference."
    )
