"""Is the comparison fair? What the guard found, as a table, as lines and as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from paribus.compare import wording
from paribus.compare.findings import Findings
from paribus.compare.guard import Flag
from paribus.compare.sheets import Column, Sheet


def answer(findings: Findings) -> str:
    """Say in a sentence whether the comparisons of a study are fair."""
    flagged, whole = findings.guard.flagged, findings.guard.count
    if not flagged:
        return "Yes, in all that was checked: in every pair of trials the two sides share all but what is varied."
    return (
        f"Not always: in {flagged} of {whole} comparisons the two sides differ in more than what is varied. "
        f"Such a difference is marked {wording.UNFAIR}; no claim is judged by it, and it joins no tie group."
    )


def checked(findings: Findings) -> Sheet:
    """List everything that arms must share, with what was found."""
    rows = [
        {"kind": one.kind.title, "verdict": one.word, "finding": (one.text, *one.items)}
        for one in findings.guard.summary()
    ]
    columns = (
        Column("kind", "Both sides must share"),
        Column("verdict", "Do they?", "verdict"),
        Column("finding", "Found"),
    )
    note = (
        "Compared in every pair of trials. What varies declares what it changes by definition, such as a "
        "number of examples the tokens that are seen."
    )
    if findings.study.compare.matched_by:
        note += (
            " The study declares matched_by: tuning_budget: the training settings of each arm were chosen on "
            "validation, with the same budget for every arm."
        )
    return Sheet("fair", "Is the comparison fair?", columns, tuple(rows), note)


def lines(findings: Findings) -> Iterator[str]:
    """Yield a line for each flag: `† Tuning LoRA. Optimizer steps: 32 against 64.`"""
    for flag in findings.guard.flags:
        yield f"{wording.UNFAIR} {_level(flag)}. {flag.sentence}"


def _level(flag: Flag) -> str:
    axis = f"{wording.axis_name(flag.axis)} " if flag.axis else ""
    return axis + wording.level_name(flag.level)


def to_json(findings: Findings) -> dict[str, Any]:
    """Return what was checked, what differs and is not declared, and what is not recorded."""
    summary = findings.guard.summary()
    return {
        "checked": {
            one.kind.name: {"verdict": one.word, "finding": one.text, "details": list(one.items)}
            for one in summary
        },
        "flags": [asdict(flag) for flag in findings.guard.flags],
        "not_recorded": findings.guard.unrecorded,
    }
