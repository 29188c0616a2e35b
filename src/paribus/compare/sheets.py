"""The tables of a study as plain values, before anyone decides how they are printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from paribus import statistics
from paribus.compare import seeing, wording
from paribus.compare.claim import Claims
from paribus.compare.contrast import Contrast
from paribus.compare.findings import NOISE, CellFindings, Findings
from paribus.compare.overfitting import overfitting
from paribus.compare.readings import At, Metric

if TYPE_CHECKING:
    from paribus.plan.design import Cell

Kind = Literal[
    "text", "level", "number", "share", "size", "count", "percent", "estimate", "difference", "p", "verdict"
]


@dataclass(frozen=True)
class Column:
    """One column: its key in the rows, its heading, what its values are, and the heading it stands under."""

    key: str
    title: str
    kind: Kind = "text"
    spanner: str = ""


MOST_LETTERS: Final = 12
"""Letters that a cell may have where tie groups are shown."""
LOUDNESS: Final = Column("ratio", "Noise ratio", "number")
"""What stands beside alpha in every table: a number of alpha says little without width and length."""
LOUDNESS_NOTE: Final = (
    " Noise ratio: RMS of NEFTune's noise over that of the embeddings, both read back in training."
)


@dataclass(frozen=True)
class Sheet:
    """A table: rows are values by column key, an absent key an empty cell; `group` titles a block of rows."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    note: str = ""

    @property
    def groups(self) -> list[str]:
        """Name the blocks of rows, in order."""
        return list(dict.fromkeys(row["group"] for row in self.rows if "group" in row))


def comparison(findings: Findings) -> Sheet:
    """Show every cell: its mean at the primary reading, k of n seeds, its difference from the baseline."""
    rows = [_cell_row(cell, findings) for cell in findings.cells]
    reading = wording.READING_NAMES[findings.primary]
    columns = (
        *_level_columns(findings, rows),
        Column("seeds", "Finished"),
        Column("mean", "Mean", "estimate"),
        *([Column("ties", "Ties")] if _lettered(findings) else []),
        Column("difference", "Difference", "difference", "From the baseline"),
        Column("holm_p", "p (Holm)", "p", "From the baseline"),
        Column("verdict", "Verdict", "verdict", "From the baseline"),
        *seen_columns(findings, rows, "From the baseline"),
    )
    note = (
        f"{findings.metric} in {findings.metric.unit}, {_better(findings.metric)} is better, at {reading}. "
        f"{_percent(findings)} {_intervals(findings)} over {_repeats(findings)}, differences paired by seed; "
        "each interval holds for its row alone, p is corrected."
    )
    if findings.rules.margin:
        level = f"{2 * findings.rules.confidence - 1:.0%}".replace("%", "\u00a0%")
        within = f"within ±{findings.rules.margin:g}"
        corrected = "p corrected" if findings.replay else "uncorrected"
        note += f" Equivalent: the {level} interval, two one-sided tests, is {within}, {corrected}."
    note += _ties_note(findings) + seen_note(findings, columns)
    note += LOUDNESS_NOTE if LOUDNESS in columns else ""
    return Sheet("comparison", f"Every cell at {reading}", columns, tuple(rows), note)


def seen_columns(
    findings: Findings, rows: Iterable[Mapping[str, Any]], under: str = "", key: str = ""
) -> list[Column]:
    """Say what a contrast could have seen, and how many seeds the margin needs, where that is known."""
    found = [Column(f"{key}smallest", "Could see", "size", under)]
    if findings.rules.margin:
        found.append(Column(f"{key}enough", f"Seeds\u00a0for ±{findings.rules.margin:g}", "count", under))
    return [column for column in found if any(row.get(column.key) is not None for row in rows)]


def seen_note(findings: Findings, columns: Iterable[Column]) -> str:
    """Explain those columns where a table has them."""
    titles = [column.title for column in columns]
    if "Could see" not in titles:
        return ""
    return seeing.note(findings.rules, any(title.startswith("Seeds\u00a0for") for title in titles))


def _lettered(findings: Findings) -> bool:
    """Say whether the groups of ties are few enough to read."""
    return max((len(letters) for letters in findings.ties.letters.values()), default=0) <= MOST_LETTERS


def _ties_note(findings: Findings) -> str:
    """Say what sharing a letter means, and over how many pairs."""
    count = len(findings.ties.holm_p)
    if not count:
        return ""
    if not _lettered(findings):
        return f" The {count} pairs of cells tie in too many groups for letters; --json has them."
    return (
        f" Ties: cells that share a letter are not told apart when all {count} pairs of cells are tested "
        "(Holm); a is the group of the best. A cell with failures joins none."
    )


def _repeats(findings: Findings) -> str:
    return "seeds" if findings.rules.estimand == "new_seeds_these_items" else "seeds and items, crossed"


def _level_columns(findings: Findings, rows: list[dict[str, Any]]) -> list[Column]:
    """Say which level a row is of, and how loud its noise was where there is any."""
    loud = [LOUDNESS] if any(row["ratio"] is not None for row in rows) else []
    if findings.one_at_a_time:
        return [Column("axis", "Axis"), Column("level", "Level", "level"), *loud]
    named = [(axis, Column(axis, wording.axis_name(axis), "level")) for axis in findings.axes]
    after = max((axis for axis in findings.axes if _is_noise(axis)), key=findings.axes.index, default=None)
    found = [column for axis, own in named for column in (own, *(loud if axis == after else []))]
    return found if after else [*found, *loud]


def _is_noise(axis: str | None) -> bool:
    return axis is not None and axis.partition(".")[0] == NOISE


def trials_at(findings: Findings, axis: str | None, level: str) -> list[str]:
    """Return the trials of every cell at a level of an axis, each once."""
    cells = [cell for cell in findings.plan.cells if axis and cell.coordinates[axis] == level]
    return list(dict.fromkeys(trial for cell in cells for trial in cell.trials.values()))


def readings(findings: Findings) -> Sheet:
    """Show each level's difference from the baseline's at all readings, the primary one first."""
    order: list[At] = [findings.primary, *findings.other_readings]
    found = {at: {(c.axis, c.level): c for c in findings.contrasts(at)} for at in order}
    columns = [Column("level", "Level", "level")]
    for at in order:
        title = wording.READING_NAMES[at] + (" (primary)" if at == findings.primary else "")
        columns.append(Column(f"{at}.difference", "Difference", "difference", title))
        columns.append(Column(f"{at}.holm_p", "p (Holm)", "p", title))
    rows = []
    for contrast in findings.primary_contrasts:
        row: dict[str, Any] = {"group": wording.axis_name(contrast.axis or ""), "level": contrast.level}
        row["conditional"] = contrast.conditional
        if _is_noise(contrast.axis):
            row["ratio"] = findings.loudness(trials_at(findings, contrast.axis, contrast.level))
        for at in order:
            other = found[at][contrast.axis, contrast.level]
            row |= {f"{at}.difference": other.difference, f"{at}.holm_p": other.holm_p}
        flags = [flag.sentence for at in order for flag in found[at][contrast.axis, contrast.level].flags]
        row["unfair"] = " ".join(dict.fromkeys(flags))
        row |= {f"{findings.primary}.{key}": value for key, value in seen_row(contrast, findings).items()}
        rows.append(row)
    title = columns[1].spanner
    columns[3:3] = seen_columns(findings, rows, title, f"{findings.primary}.")
    if any(row.get("ratio") is not None for row in rows):
        columns.insert(1, LOUDNESS)
    level = findings.common_level
    note = (
        "Each level less the baseline's level, all else equal" + _contexts(findings.primary_contrasts) + "."
    )
    if level is not None:
        note += f" The train loss that every arm reaches is {wording.number(level)}."
    note += seen_note(findings, columns) + (LOUDNESS_NOTE if LOUDNESS in columns else "")
    return Sheet("readings", "Levels at the three readings", tuple(columns), tuple(rows), note)


def losses(findings: Findings, claims: Claims) -> Sheet:
    """Show train, validation and test loss by epoch of the baseline and each tuning, beside printed ones."""
    printed = {
        (number.quantity, number.epoch): number
        for quantity in ("train_loss", "validation_loss")
        for _, number in claims.numbers(quantity)
    }
    unit = f"Loss, {findings.metric.loss_unit}"
    columns = [
        Column("epoch", "Epoch", "number"),
        Column("train_sample", "Train sample", "estimate", unit),
        Column("validation", "Validation", "estimate", unit),
        Column("test", "Test", "estimate", unit),
        Column("gap", "Test − train", "estimate", unit),
    ]
    if printed:
        columns += [
            Column("train_loss", "Train (doc.)", "text", "A document prints"),
            Column("validation_loss", "Validation (doc.)", "text", "A document prints"),
        ]
    rows = []
    for found in overfitting(findings):
        name = wording.cell_name(found.cell, findings.baseline)
        least = min(
            (row for row in found.rows if row.epoch > 0 and "validation" in row.losses),
            key=lambda row: row.losses["validation"].mean,
            default=None,
        )
        for row in found.rows:
            mine: dict[str, Any] = {"group": name, "epoch": row.epoch, "gap": row.gap, **row.losses}
            mine["lowest"] = row is least
            if found.cell.is_baseline:
                for quantity in ("train_loss", "validation_loss"):
                    if (quantity, row.epoch) in printed:
                        mine[quantity] = f"{printed[quantity, row.epoch].value:g}"
            rows.append(mine)
    note = (
        f"Means over seeds with {_percent(findings)} {_intervals(findings)}; "
        f"group {findings.metric.group}; noise off."
    )
    return Sheet("overfitting", "Losses by epoch", tuple(columns), tuple(rows), note)


def shapes(findings: Findings) -> Sheet:
    """Show, for the baseline and each tuning, how many curves have each shape of overfitting."""
    rows = []
    for found in (one for one in overfitting(findings) if any(shape.n for shape in one.shapes)):
        row: dict[str, Any] = {"cell": wording.cell_name(found.cell, findings.baseline)}
        row |= {shape.pattern: f"{shape.k} of {shape.n}" for shape in found.shapes if shape.n}
        rows.append(row)
    patterns = dict.fromkeys(key for row in rows for key in row if key != "cell")
    columns = [
        Column("cell", "Cell"),
        *(Column(p, p[0].upper() + p[1:], "text", "Seeds in which") for p in patterns),
    ]
    note = "Judged after training began, with noise off, on validation and the training sample."
    return Sheet("shapes", "The shapes of overfitting", tuple(columns), tuple(rows), note)


def failures(findings: Findings) -> Sheet | None:
    """Show every planned trial that did not finish, one row for each cell and reason."""
    if not findings.failures:
        return None
    grouped: dict[tuple[str, str, str], list[Any]] = {}
    for failure in findings.failures:
        name = wording.cell_name(failure.cell, findings.baseline)
        grouped.setdefault((name, failure.outcome, failure.reason), []).append(failure)
    by_cell = {wording.cell_name(c.cell, findings.baseline): c for c in findings.cells}
    rows = []
    for (name, outcome, reason), found in grouped.items():
        row: dict[str, Any] = {"cell": name, "outcome": outcome.replace("_", " "), "reason": reason}
        row["seeds"] = wording.listed([str(failure.seed) for failure in found])
        row["trials"] = " ".join(failure.trial_id for failure in found)
        row["rate"] = _failure_rate(by_cell[name], findings.rules.confidence)
        rows.append(row)
    columns = (
        Column("cell", "Cell"), Column("outcome", "Outcome"), Column("seeds", "Seeds"),
        Column("rate", "Finished, exact interval"), Column("reason", "Reason"),
    )  # fmt: skip
    return Sheet("failures", "Cells that did not finish", columns, tuple(rows))


def _failure_rate(cell: CellFindings, confidence: float) -> str:
    bounds = statistics.exact_interval(cell.finished, cell.planned, confidence)
    return cell.share + (f" [{bounds.low:.0%}, {bounds.high:.0%}]" if bounds else "")


def _cell_row(cell: CellFindings, findings: Findings) -> dict[str, Any]:
    row: dict[str, Any] = dict(cell.cell.coordinates)
    row |= {"seeds": cell.share, "mean": cell.estimates.get(findings.primary), "trials": cell.trials}
    row["ratio"] = findings.loudness(cell.trials)
    axis = cell.contrast.axis if cell.contrast else None
    name = wording.axis_name(axis) if axis else "Baseline"
    row |= {"axis": f"Control: {name}" if cell.cell.is_control else name}
    row |= {"level": cell.cell.coordinates[axis] if axis else _baseline_levels(cell.cell)}
    row |= {"complete": cell.finished == cell.planned, "baseline": cell.cell.is_baseline}
    if cell.contrast is not None:
        row |= contrast_row(cell.contrast, findings)
    row["ties"] = findings.ties.letters.get(tuple(cell.cell.coordinates.values()))
    return row


def _baseline_levels(cell: Cell) -> str:
    return " · ".join(wording.level_name(level) for level in cell.coordinates.values())


def contrast_row(contrast: Contrast, findings: Findings) -> dict[str, Any]:
    """Return what every table says of a contrast."""
    return {
        "difference": contrast.difference,
        "holm_p": contrast.holm_p,
        "verdict": contrast.verdict,
        "within_margin": contrast.within_margin,
        "conditional": contrast.conditional,
        "flagged": bool(contrast.flags),
    } | seen_row(contrast, findings)


def seen_row(contrast: Contrast, findings: Findings) -> dict[str, Any]:
    """Return what a contrast could have seen: `smallest`, and `enough` seeds unless it is shown to differ."""
    could = seeing.seen(contrast, findings.rules)
    if could is None:
        return {}
    differs = contrast.verdict in ("better", "worse")
    return {"smallest": could.smallest, "enough": None if differs else could.seeds_text}


def _percent(findings: Findings) -> str:
    return f"{findings.rules.confidence:.0%}".replace("%", "\u00a0%")


def _intervals(findings: Findings) -> str:
    return "repeated t intervals" if findings.replay else "t intervals"


def _better(metric: Metric) -> str:
    return "lower" if metric.lower_is_better else "higher"


def _contexts(contrasts: Iterable[Contrast]) -> str:
    most = max((contrast.contexts for contrast in contrasts), default=1)
    return f", averaged within each seed over {most} settings of the other axes" if most > 1 else ""
