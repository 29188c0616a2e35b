"""Tie groups in place of ranks: arms share a letter where no difference between them is shown."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import hypot, sqrt
from string import ascii_letters
from typing import Generic, TypeVar

from paribus.statistics.multiple import holm
from paribus.statistics.shares import exact_shares

Arm = TypeVar("Arm", bound=Hashable)


@dataclass(frozen=True)
class Ties(Generic[Arm]):
    """Arms from best to worst, each with its letters, and the adjusted p of every pair that was tested."""

    letters: Mapping[Arm, str]
    holm_p: Mapping[tuple[Arm, Arm], float]

    @property
    def apart(self) -> bool:
        """Say whether any two arms are told apart."""
        return len(set(self.letters.values())) > 1


def tie_groups(
    scores: Mapping[Arm, float],
    ps: Mapping[tuple[Arm, Arm], float | None],
    alpha: float = 0.05,
    *,
    higher_is_better: bool = True,
) -> Ties[Arm]:
    """Group arms so that two share a letter if and only if no difference between them is shown.

    `ps` has the p of each pair, in any order of the two, adjusted here by Holm over all of them; a pair
    without a p could not be tested and is not told apart. Letters go from the best arm down.
    """
    ordered = sorted(scores, key=lambda arm: -scores[arm] if higher_is_better else scores[arm])
    tested = {pair: p for pair, p in ps.items() if p is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    different = [pair for pair, p in adjusted.items() if p < alpha]
    return Ties(compact_letters(ordered, different), adjusted)


def binomial_ties(scores: Mapping[Arm, tuple[float, int]], alpha: float = 0.05) -> Ties[Arm]:
    """Group arms that were scored once, each (share right, items), by their binomial errors.

    Unpaired: each pair's difference over the root of the sum of both squared errors, a normal test; where
    a share of 0 or 1 has no error, Fisher's exact test. It knows nothing of seeds.
    """
    ps = {(a, b): _binomial_p(scores[a], scores[b]) for a, b in combinations(scores, 2)}
    return tie_groups({arm: share for arm, (share, _) in scores.items()}, ps, alpha)


def binomial_error(share: float, items: int) -> float:
    """Return the standard error of a share of independent items, sqrt(p (1 - p) / n)."""
    if not 0 <= share <= 1 or items < 1:
        raise ValueError(f"{share} of {items} items is no share")
    return sqrt(share * (1 - share) / items)


def _binomial_p(first: tuple[float, int], second: tuple[float, int]) -> float | None:
    errors = binomial_error(*first), binomial_error(*second)
    if not all(errors):
        whole = ((round(share * items), items) for share, items in (first, second))
        return exact_shares(*whole)
    from scipy.stats import norm

    return 2 * float(norm.sf(abs(first[0] - second[0]) / hypot(*errors)))


def compact_letters(arms: Sequence[Arm], different: Iterable[tuple[Arm, Arm]]) -> dict[Arm, str]:
    """Give each arm its letters, in the order of the arms, so that only arms that differ share none.

    Insert and absorb: every group with both arms of a pair that differs is split into one without each, and
    a group inside another is dropped. Source: Piepho 2004, J. Comput. Graph. Stat. 13(2), without the last
    step, that of sweeping: so a group is always as large as it can be.
    """
    place = {arm: index for index, arm in enumerate(arms)}
    groups: list[frozenset[int]] = [frozenset(place.values())]
    for first, second in different:
        pair = frozenset((place[first], place[second]))
        both = [group for group in groups if pair <= group]
        split = [group - {index} for group in both for index in pair]
        groups = _absorbed([group for group in groups if group not in both], split)
    ordered = sorted(groups, key=sorted)
    names = {group: _letter(index) for index, group in enumerate(ordered)}
    return {arm: "".join(names[group] for group in ordered if index in group) for arm, index in place.items()}


def _absorbed(kept: list[frozenset[int]], split: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """Add groups that stand inside no other; those that stayed whole stand inside no split one."""
    kept = list(kept)
    for group in sorted(split, key=len, reverse=True):
        if not any(group <= other for other in kept):
            kept.append(group)
    return kept


def _letter(index: int) -> str:
    """Return a to z, A to Z, then the same with a point in front for each round."""
    return "." * (index // len(ascii_letters)) + ascii_letters[index % len(ascii_letters)]
