"""HTML pieces: escaped text, tables, chips. Nothing a study or document says gets into a page unescaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape as _escape
from itertools import groupby
from typing import Any

from paribus.compare import tables, wording
from paribus.compare.sheets import Column, Sheet
from paribus.statistics import Estimate

GLYPHS = {
    "better": "▲", "worse": "▼", "negligible": "≈", "equivalent": "≈", "undecided": "?",
    "one pair": "1", "no pair": "–",
    "supported": "✓", "contradicted": "✗", "inconclusive": "?", "not run": "–", "baseline": "●",
    "failed": "!", "same": "✓", "declared": "≠", "differ": "†",
}  # fmt: skip
LEFT = ("text", "level", "verdict")


def text(value: object) -> str:
    """Escape anything for HTML text or a quoted attribute."""
    return _escape(str(value), quote=True)


def chip(word: str, suffix: str = "") -> str:
    """Show a verdict as a sign and a word in its colour, so that neither is needed alone."""
    tone = word.replace(" ", "-")
    sign = f'<i aria-hidden="true">{GLYPHS.get(word, "")}</i>'
    return f'<span class="chip {tone}">{sign}{text(word + suffix)}</span>'


def code(value: object) -> str:
    """Show an identifier."""
    return f"<code>{text(value)}</code>"


def table(sheet: Sheet, *, marks: Mapping[int, Mapping[str, str]] | None = None, caption: bool = True) -> str:
    """Write a sheet as an HTML table in a box that scrolls sideways; `marks` adds data attributes by row."""
    groups, body, title = sheet.groups, [], None
    for index, row in enumerate(sheet.rows):
        if groups and row.get("group") != title:
            title = row["group"]
            body.append(f'<tr class="group"><th colspan="{len(sheet.columns)}">{text(title)}</th></tr>')
        cells = "".join(_cell(row, column) for column in sheet.columns)
        data = "".join(f' data-{k}="{text(v)}"' for k, v in (marks or {}).get(index, {}).items())
        body.append(f'<tr class="{_row_class(row)}"{data}>{cells}</tr>')
        if row.get("unfair"):
            said = f"{wording.UNFAIR} {row['unfair']}"
            body.append(f'<tr class="unfair"><td colspan="{len(sheet.columns)}">{text(said)}</td></tr>')
    head = _spanners(sheet.columns) + "".join(_heading(column) for column in sheet.columns)
    note = f'<p class="note">{text(sheet.note)}</p>' if sheet.note else ""
    above = f"<caption>{text(sheet.title)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(sheet.title)}">'
        f'<table id="table-{sheet.name}" class="{sheet.name}">{above}<thead>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>{note}"
    )


def pairs(items: Iterable[tuple[str, str]]) -> str:
    """Write a definition list; the values are HTML, the names are escaped."""
    return '<dl class="pairs">' + "".join(f"<dt>{text(k)}</dt><dd>{v}</dd>" for k, v in items) + "</dl>"


def details(summary: str, body: str, open_: bool = False) -> str:
    """Fold something away under a summary."""
    return f"<details{' open' if open_ else ''}><summary>{text(summary)}</summary>{body}</details>"


def _spanners(columns: Iterable[Column]) -> str:
    """Open the head: a row of spanners where there are any, then the row of titles, left open."""
    columns = list(columns)
    if not any(column.spanner for column in columns):
        return "<tr>"
    cells = []
    for spanner, run in groupby(columns, key=lambda column: column.spanner):
        width, kind = len(list(run)), "spanner" if spanner else "blank"
        label = f'<th colspan="{width}" class="{kind}" scope="colgroup">{text(spanner)}</th>'
        cells.append(label if spanner else f'<td colspan="{width}" class="blank"></td>')
    return f"<tr>{''.join(cells)}</tr><tr>"


def _heading(column: Column) -> str:
    side = "left" if column.kind in LEFT else "right"
    title = text(column.title).replace("p (", "p\u00a0(")  # a letter is no line
    return f'<th scope="col" class="{side}">{title}</th>'


def _row_class(row: Mapping[str, Any]) -> str:
    names = [name for name in ("baseline", "lowest", "conditional") if row.get(name)]
    return " ".join(names + (["incomplete"] if row.get("complete") is False else []))


def _cell(row: Mapping[str, Any], column: Column) -> str:
    value = row.get(column.key)
    side = "left" if column.kind in LEFT else "right"
    return (
        f'<td class="{side} {column.kind} c-{column.key.replace(".", "-")}">{_value(value, row, column)}</td>'
    )


def _value(value: Any, row: Mapping[str, Any], column: Column) -> str:
    if column.kind == "verdict":
        if row.get("baseline"):
            return chip("baseline")
        return chip(value, tables.marks(row)) if value else ""
    if value is None or value == "":
        return (
            '<span class="absent">–</span>'
            if column.kind in ("estimate", "difference", "percent", "p")
            else ""
        )
    if isinstance(value, Estimate):
        return _estimate(value, column)
    if isinstance(value, list | tuple):
        return "<br>".join(text(item) for item in value)
    return text(tables.text(value, column) + tables.mark(row, column))


def _estimate(found: Estimate, column: Column) -> str:
    digits = 2 if column.kind == "percent" else 3
    if column.kind == "estimate":
        half = found.half_width
        spread = f'<span class="spread">± {wording.number(half, digits)}</span>' if half is not None else ""
        return f"{wording.number(found.mean, digits)} {spread}"
    ends = f'<span class="spread">{wording.interval(found.interval, digits)}</span>' if found.interval else ""
    return f"<b>{wording.signed(found.mean, digits)}</b> {ends}"
