"""What notebooks are made of: a study's answer, tables and figures, and the documents' claims beside them.

Each call returns a piece of HTML that a notebook shows. Where a study has no results here the piece says so
and how to get them, so that a notebook runs whole on any part of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from paribus.compare import figures, ledger, markup, rulings, sections, tables
from paribus.compare.claim import Claims, read_claims
from paribus.compare.findings import Findings
from paribus.compare.sheets import Column, Sheet
from paribus.errors import ParibusError, nearest

PANELS = 8
"""Panels of curves that a figure shows, the baseline first."""
LONGEST = 12
"""Numbers of one row that are set side by side; of more, those that were missed come first."""


@dataclass(frozen=True)
class Html:
    """A piece of HTML, as a notebook shows it."""

    body: str

    def _repr_html_(self) -> str:
        return self.body


class Board:
    """A study as a notebook shows it.

    `margin` and `family` put other rules in place of those that the study declared; the page says so.
    """

    def __init__(
        self,
        study: str,
        experiments: str | Path = rulings.EXPERIMENTS,
        results: str | Path = rulings.RESULTS,
        margin: float | None = None,
        family: str | None = None,
    ) -> None:
        self.study = study
        self._experiments, self._results_in = Path(experiments), Path(results)
        self._folder, self._results = self._experiments / study, self._results_in / study
        self._rules = {k: v for k, v in (("margin", margin), ("family", family)) if v is not None}

    @cached_property
    def findings(self) -> Findings | None:
        """Return what the study found, or nothing where it has no results here."""
        found = rulings.findings_of(self._folder, self._results, self._rules)
        return found if found and found.finished else None

    @cached_property
    def claims(self) -> Claims:
        """Return the claims beside the study."""
        return read_claims(self._folder)

    def answer(self) -> Html:
        """Say in sentences, written from the numbers, what the study found."""
        return self._of(self._answer)

    def table(self, name: str) -> Html:
        """Show one of the study's tables by its name; raises ParibusError with the nearest one."""
        return self._of(lambda findings: self._table(findings, name))

    def forest(self) -> Html:
        """Draw each level's difference from the baseline."""
        return self._of(lambda findings: picture(figures.forest(findings, self.claims)))

    def curves(self) -> Html:
        """Draw train-sample, validation and test loss by epoch, the baseline and the cells after it."""
        return self._of(self._curves)

    def documents(self, *ids: str) -> Html:
        """Show rows of the ledger: what a document says, what was found, the verdict and what it rests on."""
        return _documents(rulings.ruled(self._experiments, self._results_in, ids))

    def _of(self, show: Callable[[Findings], Html]) -> Html:
        if self.findings is None:
            return Html(
                f'<p class="note"><b>Not measured yet.</b> {markup.code(self._results)} holds no finished '
                f"trial: run {markup.code(f'paribus run {self._folder}')}.</p>"
            )
        return show(self.findings)

    def _answer(self, findings: Findings) -> Html:
        changed = ", ".join(f"{name} {value}" for name, value in self._rules.items())
        note = f'<p class="note">Judged with {changed}, not as the study declared.</p>' if changed else ""
        question = f"<p><b>{markup.text(findings.study.question)}</b></p>"
        return Html(question + note + sections.points(findings))

    def _table(self, findings: Findings, name: str) -> Html:
        found = {sheet.name: sheet for sheet in tables.all_sheets(findings, self.claims)}
        if name not in found:
            raise ParibusError(f"{self.study} has no table {name!r}", way_out=nearest(name, found))
        return Html(markup.table(found[name]))

    def _curves(self, findings: Findings) -> Html:
        spec, base = figures.curves(findings), findings.baseline
        if spec is None or base is None:
            return Html('<p class="note">No curve was recorded.</p>')
        shown = [panel for panel in figures.curve_panels(findings) if panel["group"] == findings.metric.group]
        rows = [row | {"cell": p["cell"], "order": p["order"]} for p in shown[:PANELS] for row in p["rows"]]
        return picture(spec | {"datasets": {figures.CURVES: rows}})


def picture(spec: dict[str, Any] | None) -> Html:
    """Draw a Vega-Lite specification as an SVG image, so that the page needs no script."""
    import vl_convert

    if spec is None:
        return Html('<p class="note">Nothing to draw: no pair finished.</p>')
    drawn = spec | ({"width": 640} if spec.get("width") == "container" else {})
    return Html(f"<figure>{vl_convert.vegalite_to_svg(drawn)}</figure>")


def _documents(ruled: Sequence[ledger.Ruling]) -> Html:
    rows = tuple(
        {
            "id": one.row.id,
            "says": one.row.says,
            "ours": _ours(one),
            "verdict": one.verdict,
            "reason": _why(one),
        }
        for one in ruled
    )
    columns = (
        Column("id", "Row"), Column("says", "A document says"), Column("ours", "We measured"),
        Column("verdict", "Verdict", "verdict"), Column("reason", "Why"),
    )  # fmt: skip
    counted = ", ".join(f"{count} {word}" for word, count in ledger.counts(ruled).items() if count)
    return Html(markup.table(Sheet("claims", "Beside the documents", columns, rows, f"{counted}.")))


def _ours(one: ledger.Ruling) -> list[str] | None:
    """Write each computed number beside the printed one, those that were missed first."""
    claimed = {number.quantity: number for number in one.row.numbers}
    lines: list[tuple[bool, str]] = []
    for found in one.measured:
        number = claimed.get(found["quantity"])
        beside = f" (printed {number})" if number else ""
        held = number is None or number.holds(found["value"])
        unit = f" {found['unit']}" if found["unit"] else ""
        lines.append((held, f"{found['quantity']}: {found['value']:.4g}{unit}{beside}"))
    lines.sort(key=lambda line: line[0])
    more = [f"and {len(lines) - LONGEST} more"] if len(lines) > LONGEST else []
    told = [line for _, line in lines[:LONGEST]] + more + ([one.ours] if one.ours else [])
    return told or None


def _why(one: ledger.Ruling) -> str:
    parts = [one.reason, f"known beside it: {one.row.beside}" if one.row.beside else ""]
    ready = f"would be settled by {', '.join(one.row.ready)}" if one.row.ready else ""
    return "; ".join(filter(None, (*parts, ready)))
