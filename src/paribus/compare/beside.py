"""Tables that put a study's numbers beside those a document prints: precision and NEFTune."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from paribus import statistics
from paribus.compare import sheets, wording
from paribus.compare.claim import Claims, Number, judge, matching
from paribus.compare.findings import NOISE, Findings
from paribus.compare.readings import Metric
from paribus.compare.sheets import Column, Sheet, contrast_row


def precision(findings: Findings, claims: Claims) -> Sheet | None:
    """Show each number format's change in loss beside the printed quality loss, speed and memory."""
    rows = _axis_rows(findings, "precision")
    if not rows:
        return None
    costs = {quantity: _printed(claims, quantity) for quantity in ("quality_loss", "speed", "memory")}
    values, is_loss = findings.values(findings.primary), findings.metric.quantity == "loss"
    for row in rows:
        found: statistics.Estimate | None = row.get("difference")
        if found is not None and is_loss and (base := fmean(values[k] for k in row["against"])):
            row["relative"] = _scaled(found, 100 / base)
        for quantity, numbers in costs.items():
            row[f"{quantity}.printed"] = _beside(numbers, "precision", row["level"])
        row.update(_native_cost(findings, row))
    quantity = findings.metric.quantity
    twice = findings.scored_as_trained and quantity in ("loss", "accuracy")
    if twice:
        _as_trained(findings, rows)
    columns = (
        Column("level", "Format", "level"),
        Column("difference", f"Change in {quantity}", "difference", "We measured"),
        Column("relative", "In % of baseline", "percent", "We measured"),
        Column("verdict", "Verdict", "verdict", "We measured"),
        Column("smallest", "Could see", "size", "We measured"),
        *([Column("as_trained", "Computed as trained", "difference", "We measured")] if twice else []),
        Column("speed", "Speed", "text", "We measured"),
        Column("memory", "Memory", "text", "We measured"),
        *(
            Column(
                f"{key}.printed", f"{key.capitalize().replace('_', ' ')} (doc.)", "text", "A document prints"
            )
            for key, numbers in costs.items()
            if numbers
        ),
    )
    note = f"Our change is one in {findings.metric} at {wording.READING_NAMES[findings.primary]}"
    note += ", the document's quality loss is not in this metric." if costs["quality_loss"] else "."
    if any(wording.is_emulated(row["level"]) for row in rows):
        note += (
            f" {wording.EMULATED[0].upper()}{wording.EMULATED[1:]}; operands and gradients are rounded, "
            "products computed in fp32. Speed and memory are not run: emulation shows neither."
        )
    if twice:
        note += (
            f" The change in {quantity} is of the weights, computed in fp32: the damage that training did. "
            "Computed as trained, the damage of rounding while scoring comes on top."
        )
    if any(row.get("speed") == "other machine" for row in rows):
        note += " Other machine: speed and memory are never compared across classes of machine."
    title = "Precision beside the document" if any(costs.values()) else "Precision"
    return Sheet("precision", title, columns, tuple(rows), note)


def _as_trained(findings: Findings, rows: list[dict[str, Any]]) -> None:
    """Add to each row its difference where both sides are scored computing as they train."""
    own = findings.metric
    metric = Metric(own.split, own.group, f"{own.quantity}_as_trained", own.target)
    contrasts = findings.contrasts(metric=metric)
    for row in rows:
        contrast = matching(contrasts, "precision", row["level"])
        if contrast and contrast.level == row["level"]:
            row["as_trained"] = contrast.difference


def noise(findings: Findings, claims: Claims) -> Sheet | None:
    """Show each NEFTune alpha's effect with the noise it was proven to add, beside printed win rates."""
    axis = NOISE
    rows = _axis_rows(findings, axis)
    if not rows:
        return None
    accuracy = Metric(findings.metric.split, findings.metric.group, "accuracy")
    gap = Metric(findings.metric.split, findings.metric.group, "gap")
    beside = {
        key: findings.contrasts(metric=metric) for key, metric in (("accuracy", accuracy), ("gap", gap))
    }
    printed = _printed(claims, "win_rate")
    scopes = dict.fromkeys(f"{c.scope.metric} of {c.scope.model}" for c, _ in claims.numbers("win_rate"))
    for row in rows:
        for key, contrasts in beside.items():
            contrast = matching(contrasts, axis, row["level"])
            row[key] = contrast.difference if contrast and contrast.level == row["level"] else None
        row["win_rate.printed"] = _beside(printed, axis, row["level"])
        row["ratio"] = findings.loudness(sheets.trials_at(findings, axis, row["level"]))
    columns = (
        Column("level", "α", "level"),
        sheets.LOUDNESS,
        Column(
            "difference",
            "Test " + findings.metric.quantity,
            "difference",
            "Difference from α of the baseline",
        ),
        Column("accuracy", "Token accuracy", "difference", "Difference from α of the baseline"),
        Column("gap", "Test − train gap", "difference", "Difference from α of the baseline"),
        Column("verdict", "Verdict", "verdict", "Difference from α of the baseline"),
        Column("smallest", "Could see", "size", "Difference from α of the baseline"),
        *([Column("win_rate.printed", "Document: win rate", "text")] if printed else []),
    )
    note = sheets.LOUDNESS_NOTE.strip()
    if printed:
        note += f" The document's numbers are {wording.listed(list(scopes))}: not run here."
    title = "NEFTune beside the document" if printed else "NEFTune"
    return Sheet("noise", title, columns, tuple(rows), note)


def _axis_rows(findings: Findings, axis: str) -> list[dict[str, Any]]:
    """Start a table of one axis: the baseline's level, then each contrast."""
    if findings.baseline is None or axis not in findings.axes:
        return []
    rows: list[dict[str, Any]] = [{"level": findings.baseline.coordinates[axis], "baseline": True}]
    own = [contrast for contrast in findings.primary_contrasts if contrast.axis == axis]
    return rows + [{"level": c.level, "against": c.against.trials} | contrast_row(c, findings) for c in own]


def _printed(claims: Claims, quantity: str) -> list[Number]:
    return [number for _, number in claims.numbers(quantity)]


def _beside(numbers: Iterable[Number], axis: str, label: str) -> str | None:
    """Return the printed number of a level, found by its label or kind."""
    own = [number for number in numbers if number.axis in (axis, None)]
    names = (label, wording.kind(label))
    return next((str(n) for name in names for n in own if str(n.level) == name), None)


def _scaled(found: statistics.Estimate, factor: float) -> statistics.Estimate:
    ends = found.interval
    scaled = statistics.Interval(ends.low * factor, ends.high * factor) if ends else None
    return statistics.Estimate(found.n, found.mean * factor, scaled, found.p)


def _native_cost(findings: Findings, row: Mapping[str, Any]) -> dict[str, str]:
    """Return speed and memory relative to the baseline where the format really ran, else why not."""
    if row.get("baseline"):
        return {"speed": "1x", "memory": "1x"}
    if wording.is_emulated(row["level"]):
        return {"speed": "not run", "memory": "not run"}
    if len(findings.guard.machines(_at(findings, None) + _at(findings, row["level"]))) > 1:
        return {"speed": "other machine", "memory": "other machine"}
    found = {}
    for key, name in (("speed", "tokens_per_second"), ("memory", "peak_memory_bytes")):
        treated, base = (_cost(findings, name, row["level"]), _cost(findings, name, None))
        found[key] = f"{treated / base:.2f}x" if treated and base else "not measured"
    return found


def _at(findings: Findings, level: str | None) -> list[str]:
    """Return the finished trials at a level of precision and the baseline's levels of all else."""
    base = findings.baseline
    wanted = {**base.coordinates, **({"precision": level} if level else {})} if base else {}
    ids = [k for cell in findings.plan.cells if cell.coordinates == wanted for k in cell.trials.values()]
    return [k for k in ids if k in findings.finished]


def _cost(findings: Findings, name: str, level: str | None) -> float | None:
    costs = [getattr(findings.recorded[k].result.cost, name, None) for k in _at(findings, level)]
    known = [cost for cost in costs if cost is not None]
    return fmean(known) if known else None


def verdicts(findings: Findings, claims: Claims) -> Sheet | None:
    """Show every claim of the documents with its numbers, ours, the verdict and its reason."""
    judged = judge(claims, findings)
    if not judged:
        return None
    rows = [
        {
            "id": one.claim.id,
            "says": one.claim.says,
            "ours": one.ours.split("; ") if one.ours else None,
            "verdict": one.verdict,
            "reason": one.reason,
        }
        for one in judged
    ]
    columns = (
        Column("id", "Row"),
        Column("says", "A document says"),
        Column("ours", "We measured"),
        Column("verdict", "Verdict", "verdict"),
        Column("reason", "Why"),
    )
    note = "Not run: metric, model or hardware are outside the claim's scope; ours is small-scale evidence."
    return Sheet("claims", "What the documents say of this question", columns, tuple(rows), note)
