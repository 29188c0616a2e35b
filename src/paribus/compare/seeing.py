"""What a design could have seen: the smallest difference, and the seeds that equivalence would take."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final

from paribus import statistics

if TYPE_CHECKING:
    from paribus.compare.contrast import Contrast, Rules

POWER: Final = f"{statistics.POWER:.0%}".replace("%", "\u00a0%")


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
    found = contrast.difference
    if found is None or found.error is None or found.freedom is None:
        return None
    smallest = found.error * statistics.smallest_shift(found.freedom, rules.alpha / max(1, contrast.tested))
    if rules.margin is None:
        return Seen(smallest)
    seeds = _seeds(contrast, found, rules.margin, rules)
    return Seen(smallest, seeds, beyond=seeds is None)


def _seeds(contrast: Contrast, found: statistics.Estimate, margin: float, rules: Rules) -> int | None:
    parts = contrast.parts
    if parts is None:
        return statistics.pairs_needed_tost(margin, (found.error or 0.0) * sqrt(found.n), rules.alpha)
    return statistics.fewest_pairs(
        lambda n: statistics.equivalence_power(
            margin, *statistics.error_of_mean(parts, n, rules.estimand), rules.alpha
        )
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
