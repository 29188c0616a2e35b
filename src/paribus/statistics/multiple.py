"""Several tests at once: p values adjusted over the family they belong to."""

from __future__ import annotations

from collections.abc import Sequence


def holm(ps: Sequence[float]) -> tuple[float, ...]:
    """Adjust the p values of one family so that any false positive has the stated probability.

    The i-th smallest of m is multiplied by m - i + 1, then made monotone and capped at 1.
    Source: Holm 1979, Scandinavian Journal of Statistics 6(2).
    """
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted, running = [0.0] * len(ps), 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = running
    return tuple(adjusted)


def holm_within(families: Sequence[str], ps: Sequence[float | None]) -> dict[int, float]:
    """Adjust the p values of several families, each within its own: position -> p, of those that have one."""
    adjusted: dict[int, float] = {}
    for family in set(families):
        own = {i: p for i, p in enumerate(ps) if families[i] == family and p is not None}
        adjusted |= dict(zip(own, holm(list(own.values())), strict=True))
    return adjusted
