"""The short answer of a study: sentences written from its numbers, and from nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from paribus.compare import factorial, wording
from paribus.compare.contrast import Contrast
from paribus.compare.findings import Findings
from paribus.compare.items import within_seeds
from paribus.compare.overfitting import overfitting
from paribus.compare.seeing import Seen, seen
from paribus.statistics import Estimate

Tone = Literal["better", "worse", "negligible", "equivalent", "undecided", "failed", "note"]


@dataclass(frozen=True)
class Point:
    """One thing that was found: its kind, a word or two, a sentence, and one line for each level."""

    tone: Tone
    head: str
    text: str = ""
    items: tuple[str, ...] = ()


def short_answer(findings: Findings) -> list[Point]:
    """Say what helped, what harmed, what is equivalent, what could not be told apart and what failed."""
    made = [
        _opening(findings),
        _unfair(findings),
        *_by_verdict(findings),
        _unpaired(findings),
        _together(findings),
        _controls(findings),
        _readings_disagree(findings),
        _overfits(findings),
        _failed(findings),
        _missing(findings),
    ]
    return [point for point in made if point is not None]


def _opening(findings: Findings) -> Point:
    known = [c for c in findings.primary_contrasts if c.difference and not c.is_control]
    if not known:
        done = len(findings.finished)
        text = (
            f"{done} of {len(findings.plan.jobs)} trials finished, and no level has a pair with the baseline."
        )
        return Point("note", "Nothing to compare yet", text)
    fair = [c for c in known if not c.flags]
    counts = {word: sum(c.verdict == word for c in fair) for word in ("better", "worse")}
    axes = len({contrast.axis for contrast in known})
    metric, confidence = findings.metric, f"{findings.rules.confidence:.0%}".replace("%", "\u00a0%")
    text = (
        f"Of {_count(len(known), 'level')} on {_count(axes, 'axis', 'axes')}, {counts['better'] or 'none'} "
        f"improved and {counts['worse'] or 'none'} worsened the {metric.split} {metric.quantity} "
        f"({metric.unit}, group {metric.group}) at {wording.READING_NAMES[findings.primary]}: "
        f"paired over seeds, {confidence} confidence, Holm correction{_left_out(len(known) - len(fair))}."
    )
    return Point("note", "In one sentence", text)


def _left_out(unfair: int) -> str:
    return f"; {_count(unfair, 'level')} not fairly compared" if unfair else ""


def _unfair(findings: Findings) -> Point | None:
    """Name the levels that differ from the baseline in more than what is varied."""
    flagged = [contrast for contrast in findings.primary_contrasts if contrast.flags]
    if not flagged:
        return None
    text = "These differ from the baseline in more than what is varied; no claim is judged by them:"
    items = tuple(f"{_described(c, findings)} {c.unfair}" for c in flagged)
    return Point("failed", "Not a fair comparison", text, items)


def _by_verdict(findings: Findings) -> Iterable[Point | None]:
    blind = findings.blind_to_loss()
    but = f" ({blind})" if blind else ""
    margin = f"within ±{findings.rules.margin:g} of the baseline" if findings.rules.margin else ""
    heads: tuple[tuple[Tone, str, str], ...] = (
        ("better", "Helped", ""),
        ("worse", "Harmed", ""),
        ("negligible", "Negligible", f"A real difference, but shown to be {margin}:"),
        ("equivalent", "Equivalent", f"Shown to be {margin}, which the study counts as equal{but}:"),
        ("undecided", "Not told apart", "Neither a difference nor equivalence is shown:"),
    )
    for tone, head, start in heads:
        own = [c for c in findings.primary_contrasts if c.verdict == tone and not (c.is_control or c.flags)]
        own.sort(key=lambda c: -abs(c.difference.mean) if c.difference else 0)
        yield Point(tone, head, start, tuple(_described(c, findings) for c in own)) if own else None


def _described(contrast: Contrast, findings: Findings) -> str:
    """Say a contrast in one line: what it did and by how much, with interval and p."""
    found, could = contrast.difference, seen(contrast, findings.rules)
    if found is None:
        return f"{level(contrast)}: no pair."
    if contrast.verdict in ("better", "worse"):
        way = "lowered" if found.mean < 0 else "raised"
        said = f"{level(contrast)} {way} it by {_size(found)}"
    else:
        said = f"{level(contrast)}: {wording.difference(found)}"
    of, tested = (
        ("equivalence p", contrast.tost_p) if contrast.verdict == "equivalent" else ("p", contrast.holm_p)
    )
    p = f", {of}\u00a0{_equals(tested)}" if tested is not None else ""
    arm = contrast.arm
    some = f"; only {arm.finished} of {arm.planned} trials finished" if not arm.complete else ""
    return f"{said}{p}{some}{_unseen(contrast, could)}."


def _unseen(contrast: Contrast, could: Seen | None) -> str:
    """Say below what a difference could not have been seen, where none was shown."""
    if could is None or contrast.verdict != "undecided":
        return ""
    return f"; could have seen {wording.size(could.smallest)}"


def _size(found: Estimate) -> str:
    """Write how large a change is, its sign being said in a word."""
    ends = found.interval
    low, high = sorted((abs(ends.low), abs(ends.high))) if ends else (0.0, 0.0)
    spread = f" [{wording.number(low)}, {wording.number(high)}]" if ends else ""
    return wording.number(abs(found.mean)) + spread


def _equals(p: float) -> str:
    return wording.p_value(p) if p < 0.001 else f"=\u00a0{wording.p_value(p)}"


def level(contrast: Contrast) -> str:
    """Name a contrast's level with its axis: `Precision fp8 (emulated)`; a control says that it is one."""
    axis = wording.axis_name(contrast.axis) if contrast.axis else ""
    mark = " (control)" if contrast.is_control else ""
    return f"{axis} {wording.level_name(contrast.level)}{mark}".strip()


def marked(contrast: Contrast) -> str:
    """Name a contrast's level with the signs that tables put behind a verdict."""
    some = " *" if contrast.conditional else ""
    return level(contrast) + some + (f" {wording.UNFAIR}" if contrast.flags else "")


def _unpaired(findings: Findings) -> Point | None:
    single = [c for c in findings.primary_contrasts if c.verdict == "one pair"]
    if not single:
        return None
    names = wording.listed(list(map(level, single)))
    text = f"{names}: one pair with the baseline, so there is no interval over seeds and no verdict."
    within = [(c, one) for c in single for one in within_seeds(findings, c)]
    items = tuple(
        f"{level(c)}, on the {one.items} items of seed {one.seed} alone: {wording.difference(one.estimate)}; "
        "another seed may give another."
        for c, one in within
    )
    return Point("undecided", "One pair only", text, items)


def _together(findings: Findings) -> Point | None:
    """Say whether effects add up when techniques are combined, in a grid."""
    found = factorial.summary(findings)
    return Point("note", "Together", *found) if found else None


def _controls(findings: Findings) -> Point | None:
    """Say whether the arms known to harm were seen to harm, without which no loss means nothing."""
    own = [contrast for contrast in findings.primary_contrasts if contrast.is_control]
    if not own:
        return None
    blind = findings.blind_to_loss()
    text = f"{blind[0].upper()}{blind[1:]}." if blind else "The harm that was planted on purpose was seen:"
    return Point("note", "Control", text, tuple(_described(c, findings) for c in own))


def _readings_disagree(findings: Findings) -> Point | None:
    """Say which verdicts another reading would turn."""
    turned: dict[str, list[str]] = {}
    primary = {(c.axis, c.level): c for c in findings.primary_contrasts}
    for at in findings.other_readings:
        for other in (contrast for contrast in findings.contrasts(at) if not contrast.is_control):
            first = primary[other.axis, other.level]
            decided = {first.verdict, other.verdict}
            if (
                first.difference
                and other.difference
                and len(decided) == 2
                and decided & {"better", "worse"}
                and "negligible" not in decided
            ):
                name = f"{level(other)} is {first.verdict} here"
                turned.setdefault(name, []).append(f"{other.verdict} at {wording.READING_NAMES[at]}")
    items = tuple(f"{name}, {wording.listed(others)}." for name, others in turned.items())
    return (
        Point("note", "Depends on when", "Read elsewhere on the curve, a verdict changes:", items)
        if items
        else None
    )


def _overfits(findings: Findings) -> Point | None:
    base = next((found for found in overfitting(findings) if found.cell.is_baseline), None)
    if base is None or not any(shape.n for shape in base.shapes):
        return None
    text = f"In the baseline {wording.listed([str(shape) for shape in base.shapes if shape.n])}."
    return Point("note", "Overfitting", text)


def _failed(findings: Findings) -> Point | None:
    if not findings.failures:
        return None
    seen: dict[tuple[str, str], int] = {}
    for failure in findings.failures:
        key = (wording.cell_name(failure.cell, findings.baseline), failure.outcome.replace("_", " "))
        seen[key] = seen.get(key, 0) + 1
    items = [f"{name}: {outcome}, {_count(count, 'trial')}." for (name, outcome), count in seen.items()]
    return Point("failed", "Did not finish", "The reasons stand below:", tuple(items))


def _missing(findings: Findings) -> Point | None:
    if not findings.missing:
        return None
    text = f"{len(findings.missing)} of {len(findings.plan.jobs)} trials have no recorded outcome."
    return Point("failed", "Not run yet", text)


def _count(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
