"""Is the comparison fair? What the guard found over a whole study: a table, lines, plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from paribus.compare import wording
from paribus.compare.facts import KINDS, Facts, Kind
from paribus.compare.findings import Findings
from paribus.compare.guard import Comparison, Flag, written
from paribus.compare.sheets import Column, Sheet

MOST: Final = 6
"""Comparisons that are named one by one; of more the number is given."""


@dataclass(frozen=True)
class Checked:
    """What came of one kind over all comparisons of a study: a line, and one for each that differs."""

    kind: Kind
    word: Literal["same", "declared", "differ"]
    text: str
    items: tuple[str, ...] = ()


def checked(findings: Findings) -> list[Checked]:
    """Say of each thing that arms must share what came of it; what is recorded of no pair is left out."""
    made = ([one for one in findings.guard.comparisons if one.kind == kind] for kind in KINDS)
    return [found for own in made if (found := _checked(own))]


def _checked(own: Sequence[Comparison]) -> Checked | None:
    shared = dict.fromkeys(_written(facts) for one in own for facts in one.shared if facts)
    different = [one for one in own if one.differences]
    undeclared = [one for one in different if one.flag]
    if undeclared:
        text = f"In {len(undeclared)} of {len(own)} comparisons:"
        return Checked(own[0].kind, "differ", text, _items(undeclared))
    if different:
        axes = dict.fromkeys(wording.axis_name(one.declared_by or "") for one in different)
        alone = [one for one in different if one.contrast.axis] or different
        text = f"Changed by what varies, {wording.listed(list(axes))}:"
        return Checked(own[0].kind, "declared", text, _items(alone))
    if not shared:
        return None
    return Checked(own[0].kind, "same", next(iter(shared)) if len(shared) == 1 else "The same in each pair")


def _items(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    named = [f"{_level(one.contrast)}: {one.difference}" for one in comparisons]
    return tuple(named if len(named) <= MOST else [*named[:MOST], f"and {len(named) - MOST} more"])


def _level(of: Any) -> str:
    axis = f"{wording.axis_name(of.axis)} " if of.axis else ""
    return axis + wording.level_name(of.level)


def _written(facts: Facts) -> str:
    return ", ".join(f"{part} {written(value)}".strip() for part, value in facts.items())


def answer(findings: Findings) -> str:
    """Say in a sentence whether the comparisons of a study are fair."""
    whole = {one.contrast for one in findings.guard.comparisons}
    flagged = {one.contrast for one in findings.guard.comparisons if one.flag}
    if not flagged:
        return "Yes, in all that was checked: in every pair the two sides share all but what is varied."
    return (
        f"Not always: in {len(flagged)} of {len(whole)} comparisons the two sides differ in more than what "
        f"is varied. Such a difference is marked {wording.UNFAIR}; no claim is judged by it, and it joins no "
        "tie group."
    )


def sheet(findings: Findings) -> Sheet:
    """List everything that arms must share, with what was found."""
    rows = [
        {"kind": one.kind.title, "verdict": one.word, "finding": (one.text, *one.items)}
        for one in checked(findings)
    ]
    columns = (
        Column("kind", "Both sides must share"),
        Column("verdict", "Do they?", "verdict"),
        Column("finding", "Found"),
    )
    note = (
        "Compared in every pair of trials. What varies declares what it changes by definition, as a number "
        "of examples does the tokens that are seen."
    )
    if findings.study.compare.matched_by:
        note += (
            " Declared as matched_by: tuning_budget: the training settings of each arm were chosen on "
            "validation, with one budget for all."
        )
    return Sheet("fair", "Is the comparison fair?", columns, tuple(rows), note)


def unrecorded(findings: Findings) -> list[str]:
    """Name what is not recorded of some trials and so was not compared there."""
    found: dict[str, dict[str, None]] = {}
    for one in findings.guard.comparisons:
        if one.unrecorded:
            found.setdefault(one.kind.title, {}).update(dict.fromkeys(filter(None, one.unrecorded)))
    return [f"{title} ({', '.join(parts)})" if parts else title for title, parts in found.items()]


def flags(findings: Findings) -> list[Flag]:
    """Return every flag of a study."""
    return [flag for one in findings.guard.comparisons if (flag := one.flag)]


def lines(findings: Findings) -> Iterator[str]:
    """Yield a line for each flag: `† Tuning LoRA. Optimizer steps: 32 against 64.`"""
    for flag in flags(findings):
        yield f"{wording.UNFAIR} {_level(flag)}. {flag.sentence}"


def to_json(findings: Findings) -> dict[str, Any]:
    """Return what was checked, what differs and is not declared, and what is not recorded."""
    return {
        "checked": {
            one.kind.name: {"verdict": one.word, "finding": one.text, "details": list(one.items)}
            for one in checked(findings)
        },
        "flags": [asdict(flag) for flag in flags(findings)],
        "not_recorded": unrecorded(findings),
    }
