"""Equality within a margin: shown by a test, never by the absence of a difference."""

from __future__ import annotations

from collections.abc import Sequence

from paribus.statistics.intervals import Estimate, paired_difference
from paribus.statistics.student import t_tail


def tost(differences: Sequence[float], margin: float) -> float | None:
    """Return the p of "the mean difference is outside ±margin": small means equivalent at that margin.

    The larger of two one-sided t tests; absent for fewer than two pairs. At level 0.05 it agrees with the
    90 % t interval lying inside ±margin. Source: Schuirmann 1987, J. Pharmacokinet. Biopharm. 15(6).
    """
    found = paired_difference(differences)
    return tost_of(found, margin) if found else None


def tost_of(found: Estimate, margin: float) -> float | None:
    """Return the same p for an estimate with an error of its own; absent where it has none."""
    if margin <= 0:
        raise ValueError(f"an equivalence margin must be above 0, not {margin}")
    if found.error is None or found.freedom is None:
        return None
    if found.error == 0:
        return 0.0 if abs(found.mean) < margin else 1.0
    return t_tail((margin - abs(found.mean)) / found.error, found.freedom)
