"""Equality within a margin: shown by a test, never by the absence of a difference."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

from paribus.statistics.student import t_tail


def tost(differences: Sequence[float], margin: float) -> float | None:
    """Return the p of "the mean difference is outside ±margin": small means equivalent at that margin.

    The larger of two one-sided t tests; absent for fewer than two pairs. At level 0.05 it agrees with the
    90 % t interval lying inside ±margin. Source: Schuirmann 1987, J. Pharmacokinet. Biopharm. 15(6).
    """
    if margin <= 0:
        raise ValueError(f"an equivalence margin must be above 0, not {margin}")
    if len(differences) < 2:
        return None
    mean, spread = fmean(differences), stdev(differences) / sqrt(len(differences))
    if spread == 0:
        return 0.0 if abs(mean) < margin else 1.0
    freedom = len(differences) - 1
    return max(t_tail((margin + mean) / spread, freedom), t_tail((margin - mean) / spread, freedom))
