"""What an axis does in each condition: its levels against the baseline's, one choice of all else each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from paribus.compare import wording
from paribus.compare.contrast import Contrast, Pairing, contrast_of, judged, level_pairings
from paribus.compare.findings import Findings
from paribus.compare.sheets import Column, Sheet

if TYPE_CHECKING:
    from paribus.plan.design import Cell

MOST: Final = 4
"""Conditions that a table has room for."""


def sheet(findings: Findings) -> Sheet | None:
    """Show each level of the axis that has most of them under each choice of what else varies.

    The contrasts of one condition are a family of their own. There is nothing to show where there is only one
    condition, and no table where there are more than four.
    """
    every = level_pairings(findings.plan.cells)
    counts = Counter(axis for axis, _, _ in every)
    if not counts:
        return None
    axis = counts.most_common(1)[0][0]
    pairings = {key: found for key, found in every.items() if key[0] == axis}
    others = _others(axis, [cell for pairs in pairings.values() for cell, _ in pairs])
    if not others:
        return None
    choices = _choices(others, pairings)
    if not 1 < len(choices) <= MOST:
        return None
    found = {places: conditioned(findings, pairings, others, places) for places in choices}
    levels = list(dict.fromkeys(level for _, level, _ in pairings))
    rows = [_row(level, {places: by.get(level) for places, by in found.items()}) for level in levels]
    columns = [Column("level", wording.AXIS_NAMES.get(axis, axis), "level")]
    for places in found:
        spanner = ", ".join(_short(o, place) for o, place in zip(others, places, strict=True))
        columns.append(Column(_key(places, "difference"), "Difference", "difference", spanner))
        columns.append(Column(_key(places, "verdict"), "Verdict", "verdict", spanner))
    note = (
        f"Differences in {findings.metric} from the baseline's level under the same condition, over seeds; "
        "p is adjusted within a condition."
    )
    title = f"{wording.AXIS_NAMES.get(axis, axis)} in each condition"
    return Sheet("conditions", title, tuple(columns), tuple(rows), note)


def conditioned(
    findings: Findings,
    pairings: Mapping[tuple[str, str, str], Pairing],
    others: Sequence[str],
    places: tuple[str, ...],
) -> dict[str, Contrast]:
    """Return the contrasts of every level in one condition, by level."""
    made = []
    read = findings.read(findings.primary, findings.metric)
    for (axis, level, home), pairs in pairings.items():
        own = [pair for pair in pairs if tuple(pair[0].coordinates[o] for o in others) == places]
        if own:
            made.append(replace(contrast_of(read, axis, (level, home), own), family="condition"))
    return {one.level: findings.guard.checked(one) for one in judged(made, read.rules)}


def _others(axis: str, cells: Sequence[Cell]) -> list[str]:
    """Name what else varies among an axis' cells."""
    names = list(cells[0].coordinates) if cells else []
    return [o for o in names if o != axis and len({cell.coordinates[o] for cell in cells}) > 1]


def _choices(
    others: Sequence[str], pairings: Mapping[tuple[str, str, str], Pairing]
) -> list[tuple[str, ...]]:
    """List the choices of all else that most levels have, in the order of the design."""
    counts: dict[tuple[str, ...], int] = {}
    for pairs in pairings.values():
        for cell, _ in pairs:
            places = tuple(cell.coordinates[o] for o in others)
            counts[places] = counts.get(places, 0) + 1
    return [places for places, count in counts.items() if 2 * count > len(pairings)]


def _row(level: str, found: Mapping[tuple[str, ...], Contrast | None]) -> dict[str, Any]:
    row: dict[str, Any] = {"level": level}
    for places, contrast in found.items():
        if contrast is not None:
            row[_key(places, "difference")] = contrast.difference
            row[_key(places, "verdict")] = contrast.verdict
    return row


def _key(places: tuple[str, ...], name: str) -> str:
    return f"{'/'.join(places)}.{name}"


def _short(axis: str, place: str) -> str:
    name = wording.AXIS_NAMES.get(axis, axis.rpartition(".")[2].replace("_", " "))
    return f"{name} {wording.kind(place).replace('_', ' ')}"
