"""Whether a base model's figure stands at the floor, where a loss cannot be seen any more."""

from __future__ import annotations

from typing import Final

from paribus.record.result import Figure

ALPHA: Final = 0.05


def floor_of(figure: Figure) -> bool:
    """Say that a figure is exactly 0, or that its share is not shown to be above chance.

    It is shown where guessing would do as well in less than 5 % of samples of as many items, by the exact
    binomial test, one-sided. Where chance differs from item to item, `chance` is its mean and the test errs
    on the safe side (Hoeffding 1956, Ann. Math. Stat. 27(3)). Where less is better there is no floor.
    """
    from scipy.stats import binom

    if not figure.higher_is_better:
        return False
    if figure.value == 0 or not figure.chance:
        return figure.value == 0
    right = round(figure.value * figure.n)
    return bool(binom.sf(right - 1, figure.n, figure.chance) >= ALPHA)
