"""Tie groups of a study's cells: every pair is tested, and cells share a letter unless they differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING

from paribus.compare.contrast import Read, contrast_of
from paribus.statistics import Ties, tie_groups

if TYPE_CHECKING:
    from paribus.compare.findings import CellFindings

Place = tuple[str, ...]
"""A cell by its levels, in the order of the axes."""


def cell_ties(cells: Sequence[CellFindings], read: Read) -> Ties[Place]:
    """Group the cells by their paired differences, p adjusted by Holm over all pairs.

    A cell of which a trial failed or gave no value joins no group, nor one that is no fair comparison with
    the baseline, nor a control, which tests the test.
    """
    joined = {tuple(found.cell.coordinates.values()): found.cell for found in cells if _joins(found, read)}
    scores = {place: fmean(read.values[k] for k in cell.trials.values()) for place, cell in joined.items()}
    ps = {}
    for a, b in combinations(joined, 2):
        found = contrast_of(read, None, ("", ""), [(joined[a], joined[b])]).difference
        ps[a, b] = found.p if found else None
    return tie_groups(scores, ps, read.rules.alpha, higher_is_better=not read.metric.lower_is_better)


def _joins(found: CellFindings, read: Read) -> bool:
    unfair = found.contrast is not None and bool(found.contrast.flags)
    return not found.cell.is_control and not unfair and all(k in read.values for k in found.trials)
