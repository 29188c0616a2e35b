"""Where seeds were added and where they were not: the table of an adaptive study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paribus.compare import wording
from paribus.compare.adaptive import DECIDED, Stop
from paribus.compare.findings import Findings
from paribus.compare.sheets import Column, Sheet

if TYPE_CHECKING:
    from paribus.plan.study import Study

ENDS = {
    "conditional": "equal where it finished; some trials did not",
    "no pair": "nothing finished to compare",
    "limit": "no seeds left",
    None: "goes on",
}
"""Why a contrast that is not decided has no further seeds, as a reader sees it."""


def replication(findings: Findings) -> Sheet | None:
    """Show for each contrast of an adaptive study at how many seeds it stopped, and what that saved."""
    found = findings.replay
    if found is None:
        return None
    rows = [_row(stop) for stop in found.stops.values()]
    columns = (
        Column("level", "Level", "level"),
        Column("seeds", "Seeds", "number"),
        Column("why", "Stopped because"),
        Column("difference", "Difference", "difference"),
    )
    looks, least, most = found.whole.study.repeat.looks, len(found.plan.jobs), len(found.whole.jobs)
    state = "needed" if found.ended else f"needed so far, {len(found.waiting)} of them without an outcome"
    saved = f", {found.saved} saved" if found.ended else ""
    note = (
        f"Seeds were added to each contrast until it was decided, from {looks.first if looks else 0} to "
        f"{looks.last if looks else 0}: {least} of at most {most} trials {state}{saved}. Every interval of "
        "this study is a repeated one, which holds however often it was looked at, and every p a sequential "
        "one; Holm adjusts those of equality too. The mean after an early stop leans away from zero."
    )
    return Sheet("replication", "Where each contrast stopped", columns, tuple(rows), note)


def _row(stop: Stop) -> dict[str, Any]:
    contrast = stop.contrast
    axis = wording.axis_name(contrast.axis) if contrast.axis else "Cells"
    return {
        "group": f"Control: {axis}" if contrast.is_control else axis,
        "level": contrast.level,
        "seeds": stop.seeds,
        "why": stop.why if stop.why in DECIDED else ENDS[stop.why],
        "difference": contrast.difference,
        "conditional": contrast.conditional,
        "flags": (),
    }


def seeds_of(study: Study) -> str:
    """Say with which seeds each cell is repeated: their list, or from how many to how many and until when."""
    looks, seeds = study.repeat.looks, study.repeat.seeds
    if looks is None:
        return f"seeds {wording.listed([str(seed) for seed in seeds])}"
    return f"{looks.first} to {looks.last} seeds from {seeds[0]} on, until all is decided"
