"""A study's tables for a terminal, as CSV, as LaTeX and as one JSON document."""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from paribus.compare import beside, conditions, document, factorial, fairness, rates, seeing, sheets, wording
from paribus.compare.claim import Claims, read_claims
from paribus.compare.findings import CellFindings, Findings, reason
from paribus.compare.memorisation import memorisation
from paribus.compare.readings import READINGS
from paribus.compare.replication import replication
from paribus.compare.sheets import Column, Sheet
from paribus.record.table import coordinates
from paribus.statistics import Estimate

if TYPE_CHECKING:
    from paribus.plan.design import Plan
    from paribus.record.store import Recorded, Store

VERDICT_STYLE = {"better": "green", "worse": "red", "equivalent": "cyan", "negligible": "cyan"}
SCHEMA = 1
WRAPPED = ("text", "level")
"""Kinds of columns that are words, which may go on in the next line; a number never does."""
NARROW = {"Difference": "Change", "Finished": "Done", "p (Holm)": "Holm p"}
"""Headings that take less room where there is little."""
UNDER = {"ties": "mean", "smallest": "difference"}
"""Columns that stand under another one where there is little room."""
NOT_IN_TERMINAL = {"rate", "relative", "enough"}
"""Columns that only a wider page has room for."""


def all_sheets(findings: Findings, claims: Claims) -> list[Sheet]:
    """Return every table that a study has something to say in, in the order of the report."""
    made = (
        sheets.comparison(findings),
        replication(findings),
        sheets.readings(findings),
        memorisation(findings),
        sheets.losses(findings, claims),
        beside.precision(findings, claims),
        beside.noise(findings, claims),
        conditions.sheet(findings),
        factorial.sheet(findings),
        sheets.failures(findings),
        rates.sheet(findings),
    )
    return [sheet for sheet in made if sheet is not None and sheet.rows]


def terminal(plan: Plan, store: Store, console: Console) -> None:
    """Print the comparison, the losses by epoch, precision beside the document, and what failed."""
    findings = Findings(plan, store)
    claims = read_claims(plan.study.folder)
    wanted = (
        "comparison", "replication", "memorisation", "overfitting", "precision", "noise", "together",
        "failures", "rates",
    )  # fmt: skip
    for sheet in all_sheets(findings, claims):
        if sheet.name in wanted:
            shown = replace(sheet, rows=_first_group(sheet)) if sheet.name == "overfitting" else sheet
            console.print(_fitting(shown, console))
            note = "" if sheet.name == "failures" else f"{sheet.note} {signs(sheet)}".strip()
            console.print(f"[dim]{escape(note)}[/]\n" if note else "", highlight=False)
            if sheet.name == "comparison" and (unfair := [*fairness.lines(findings)]):
                console.print(escape("\n".join(unfair)) + "\n", style="red", highlight=False)
    if findings.missing:
        console.print(f"{len(findings.missing)} of {len(plan.jobs)} trials have no recorded outcome yet.")


def csv(plan: Plan, store: Store) -> str:
    """Return the comparison as CSV with plain numbers.

    One row a cell: a column for each axis; `finished`, `planned`; for each reading `<reading>_mean`,
    `<reading>_low`, `<reading>_high` and `<reading>_n`; `ties`, the cell's letters; at the primary reading
    `difference`, its `_low`, `_high`, `_n` (pairs), `p`, `p_holm`, `p_tost`, `verdict`, `flags` (kinds in
    which it is not fair), `smallest_difference` (found with 80 % power) and `seeds_for_margin`;
    `noise_ratio`, the RMS of NEFTune's noise over that of the embeddings; and `trials`, ids separated by
    spaces.
    """
    findings = Findings(plan, store)
    estimates = [f"{at}_{part}" for at in READINGS for part in ("mean", "low", "high", "n")]
    contrast = ["difference", "difference_low", "difference_high", "difference_n"]
    header = [
        *findings.axes,
        "finished",
        "planned",
        *estimates,
        "ties",
        *contrast,
        "p",
        "p_holm",
        "p_tost",
        "verdict",
        "flags",
        "smallest_difference",
        "seeds_for_margin",
        "noise_ratio",
    ]
    out = io.StringIO()
    writer = csv_module.DictWriter(out, [*header, "trials"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(_csv_row(cell, findings) for cell in findings.cells)
    return out.getvalue()


def _csv_row(cell: CellFindings, findings: Findings) -> dict[str, Any]:
    row: dict[str, Any] = dict(cell.cell.coordinates) | {"noise_ratio": findings.loudness(cell.trials)}
    row["ties"] = findings.ties.letters.get(tuple(cell.cell.coordinates.values()))
    row |= {"finished": cell.finished, "planned": cell.planned, "trials": " ".join(cell.trials)}
    for at, estimate in cell.estimates.items():
        row |= _spread(at, estimate) | {f"{at}_mean": estimate.mean}
    found = cell.contrast
    if found is None:
        return row | {"verdict": "baseline"}
    if found.difference is not None:
        row |= _spread("difference", found.difference) | {"difference": found.difference.mean}
        row |= {"p": found.difference.p, "p_holm": found.holm_p, "p_tost": found.tost_p}
    if could := seeing.seen(found, findings.rules):
        row |= {"smallest_difference": could.smallest, "seeds_for_margin": could.seeds}
    return row | {"verdict": found.verdict, "flags": " ".join(flag.kind for flag in found.flags)}


def _spread(name: str, estimate: Estimate) -> dict[str, Any]:
    ends = estimate.interval
    found: dict[str, Any] = {f"{name}_n": estimate.n}
    return found | ({f"{name}_low": ends.low, f"{name}_high": ends.high} if ends else {})


def rows(plan: Plan, store: Store) -> dict[str, Any]:
    """Return one JSON document with a row for each planned trial that has a recorded outcome, and no other.

    Keys: `paribus` (schema version), `study`, `metric`, `at` (the primary reading), `rows`. A row: `trial`
    (id), `group` (id without the seed), `seed`, `outcome`, `reason` (absent where finished), `coordinates`
    (axis -> level), `settings` (the whole trial), `metrics` (metric -> reading -> value; the readings are
    base, last, best_validation, equal_train_loss, each absent where the curve has no such place), `cost`,
    `resolved`, `proof` (axis -> evidence), `warnings`, `machine_class`, `provenance`. `fairness` says in what
    the sides of the comparisons differ beside what is varied. Then what was found: `estimand`, `cells`,
    `contrasts`, `main_effects`, `interactions`, `finish_rates`; see `document.found`.
    """
    findings, places = Findings(plan, store), coordinates(plan)
    metrics = _metrics(findings)
    found = [findings.recorded[job.trial_id] for job in plan.jobs if job.trial_id in findings.recorded]
    return {
        "paribus": SCHEMA,
        "study": plan.study.name,
        "metric": str(findings.metric),
        "at": findings.primary,
        "fairness": fairness.to_json(findings),
        **document.found(findings),
        "rows": [_row(known, places.get(known.job.trial_id, {}), metrics) for known in found],
    }


def latex(plan: Plan, store: Store) -> str:
    """Return every table as LaTeX for booktabs, with the characters that pdflatex must be told of."""
    findings = Findings(plan, store)
    made = [_latex(sheet) for sheet in all_sheets(findings, read_claims(plan.study.folder))]
    return "\n\n".join([LATEX_PREAMBLE, *made]) + "\n"


def show(sheet: Sheet, console: Console) -> None:
    """Print one table with its note."""
    console.print(_fitting(sheet, console))
    console.print(f"[dim]{escape(sheet.note)}[/]\n", highlight=False)


LATEX_PREAMBLE = r"""% \usepackage{booktabs,caption,longtable,colortbl,array,newunicodechar}
% \newunicodechar{α}{\ensuremath{\alpha}} \newunicodechar{±}{\ensuremath{\pm}}
% \newunicodechar{−}{\ensuremath{-}} \newunicodechar{≈}{\ensuremath{\approx}}
% \newunicodechar{†}{\ensuremath{\dagger}}"""


def text(value: Any, column: Column) -> str:
    """Write one value of a table as a reader sees it; an absent one as nothing."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    return _WRITTEN[column.kind](value) if column.kind in _WRITTEN else str(value)


def marks(row: Mapping[str, Any]) -> str:
    """Return what stands after a verdict: that some trials did not finish, that it is not a fair one."""
    some = " *" if row.get("conditional") and row.get("verdict") != "no pair" else ""
    return some + (f" {wording.UNFAIR}" if row.get("flagged") else "")


def mark(row: Mapping[str, Any], column: Column) -> str:
    """Return what stands after the level of a row whose difference is not a fair one."""
    return f" {wording.UNFAIR}" if column.kind == "level" and row.get("unfair") else ""


_WRITTEN: dict[str, Callable[[Any], str]] = {
    "estimate": wording.estimate,
    "difference": wording.difference,
    "percent": lambda value: wording.difference(value, 2),
    "p": wording.p_value,
    "share": wording.number,
    "size": wording.size,
    "number": lambda value: f"{value:.3g}",
    "level": wording.level_name,
}


def _fitting(sheet: Sheet, console: Console) -> Table:
    """Return the table with each number on one line, or intervals under means where the screen is narrow."""
    needs = sum(_least_width(sheet, column) + 2 for column in _shown_columns(sheet)) - 2
    return _rich(sheet, narrow=needs > console.width)


def _shown_columns(sheet: Sheet, narrow: bool = False) -> list[Column]:
    """Leave out what only a wider page has room for, and where there is little what goes under another."""
    keys = {column.key for column in sheet.columns}
    under = {key for key, above in UNDER.items() if above in keys} if narrow else set()
    return [column for column in sheet.columns if column.key not in NOT_IN_TERMINAL | under]


def _rich(sheet: Sheet, narrow: bool) -> Table:
    table = Table(title=sheet.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    columns = _shown_columns(sheet, narrow)
    for column in columns:
        justify = "left" if column.kind in WRAPPED or column.kind == "verdict" else "right"
        whole = column.kind == "verdict" or not (narrow or column.kind in WRAPPED)
        least = None if narrow else _least_width(sheet, column)
        title = NARROW.get(column.title, column.title) if narrow else column.title
        table.add_column(escape(title), justify=justify, no_wrap=whole, overflow="fold", min_width=least)
    group = None
    for row in sheet.rows:
        if row.get("group") != group:
            group = row["group"]
            table.add_row(Text(str(group), style="bold"))
        table.add_row(*(_rich_cell(row, column, narrow) for column in columns))
    return table


def _least_width(sheet: Sheet, column: Column) -> int:
    """Return the characters a column needs: its longest word where it wraps, else its longest text."""
    texts = [column.title, *(text(row.get(column.key), column) for row in sheet.rows)]
    pieces = [piece for shown in texts for piece in (shown.split() if column.kind in WRAPPED else [shown])]
    return max(map(len, pieces))


def _rich_cell(row: Mapping[str, Any], column: Column, narrow: bool) -> Text:
    value = row.get(column.key)
    shown = text(value, column)
    if narrow and column.kind != "text":  # the spread goes under its mean
        shown = shown.replace(", ", ",\N{NO-BREAK SPACE}").replace(" [", "\n[")
        shown = shown.replace(" ± ", "\n±\N{NO-BREAK SPACE}") + _under(row, column)
    if column.kind == "verdict":
        shown = "baseline" if row.get("baseline") else shown
        shown += marks(row) if value else ""
        return Text(shown, style=VERDICT_STYLE.get(str(value), "dim"))
    if column.key == "seeds" and row.get("complete") is False:
        return Text(shown, style="yellow")
    return Text(shown, style="bold" if row.get("lowest") and column.key == "validation" else "")


def _under(row: Mapping[str, Any], column: Column) -> str:
    """Return what goes under a cell where there is no room beside it: tie letters, what could be seen."""
    ties, smallest = row.get("ties"), row.get("smallest")
    if column.key == "mean" and ties:
        return f"\nties\N{NO-BREAK SPACE}{ties}"
    if column.key == "difference" and smallest is not None:
        return f"\nsees\N{NO-BREAK SPACE}{wording.size(smallest)}"
    return ""


def _metrics(findings: Findings) -> dict[str, dict[str, dict[str, float]]]:
    """Read every metric of every finished trial at every reading: trial -> metric -> reading -> value."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for metric in findings.metrics():
        for at in READINGS:
            for trial_id, value in findings.values(at, metric).items():
                found.setdefault(trial_id, {}).setdefault(str(metric), {})[at] = value
    return found


def _row(known: Recorded, place: dict[str, str], metrics: Mapping[str, Any]) -> dict[str, Any]:
    job, result = known.job, known.result
    outcome = result.result.outcome
    return {
        "trial": job.trial_id,
        "group": job.group,
        "seed": job.trial.seed,
        "outcome": outcome,
        **({} if outcome == "finished" else {"reason": reason(result)}),
        "coordinates": place,
        "settings": job.trial.model_dump(mode="json", exclude={"content"}),
        "metrics": metrics.get(job.trial_id, {}),
        "cost": result.cost.model_dump(exclude_none=True) if result.cost else {},
        "resolved": result.resolved,
        "proof": result.proof,
        "warnings": list(result.warnings),
        "machine_class": result.machine_class,
        "provenance": result.provenance,
    }


def signs(sheet: Sheet) -> str:
    """Explain the signs that stand after a table's verdicts."""
    used = "".join(marks(row) for row in sheet.rows)
    star = "* conditional: some trials of this arm did not finish. " if "*" in used else ""
    unfair = (
        f"{wording.UNFAIR} the sides differ in more than what is varied." if wording.UNFAIR in used else ""
    )
    return (star + unfair).strip()


def _first_group(sheet: Sheet) -> tuple[Mapping[str, Any], ...]:
    return tuple(row for row in sheet.rows if row["group"] == sheet.groups[0])


def _latex(sheet: Sheet) -> str:
    """Typeset one table by great_tables, which knows spanners, row groups and source notes, no footnotes."""
    import pandas as pd
    from great_tables import GT

    frame = pd.DataFrame(
        [{c.key: _latex_text(row, c) for c in sheet.columns} | _grouped(row) for row in sheet.rows]
    )
    grouped = "group" in frame
    table = GT(frame, groupname_col="group" if grouped else None).tab_header(sheet.title)
    table = table.cols_label(cases={column.key: column.title for column in sheet.columns})
    for spanner in dict.fromkeys(column.spanner for column in sheet.columns if column.spanner):
        table = table.tab_spanner(spanner, [c.key for c in sheet.columns if c.spanner == spanner])
    return table.tab_source_note(f"{sheet.note} {signs(sheet)}".strip()).as_latex()


def _latex_text(row: Mapping[str, Any], column: Column) -> str:
    value = row.get(column.key)
    ending = marks(row) if column.kind == "verdict" and value else mark(row, column)
    return text(value, column) + ending


def _grouped(row: Mapping[str, Any]) -> dict[str, str]:
    return {"group": str(row["group"])} if "group" in row else {}


__all__ = ["all_sheets", "csv", "latex", "rows", "show", "signs", "terminal", "text"]
