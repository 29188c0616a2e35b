"""The report: one HTML file that opens offline and says what was asked, found and not found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.compare import evidence, figures, sections
from paribus.compare.claim import Claims, read_claims
from paribus.compare.findings import Findings
from paribus.compare.page import page
from paribus.errors import ParibusError, Place
from paribus.sources.cache import write_whole

if TYPE_CHECKING:
    from paribus.plan.design import Plan
    from paribus.record.store import Store

LINKS = {
    "answer": "Answer", "design": "Design", "cells": "Every cell", "replication": "Replication",
    "effects": "Differences", "together": "Together", "fair": "Fair?", "overfitting": "Overfitting",
    "documents": "Documents", "failed": "Not finished", "evidence": "Evidence", "provenance": "Provenance",
}  # fmt: skip


def write_report(plan: Plan, store: Store, path: Path) -> Path:
    """Write the report of what is recorded now and return its path; works with any number of results."""
    html = report(plan, store)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, html.encode("utf-8"))
    except OSError as error:
        raise ParibusError(
            f"the report cannot be written: {error.strerror}",
            place=Place(path),
            way_out="What is recorded stays. Make room there, or write it elsewhere: paribus report --to.",
        ) from error
    return path


def report(plan: Plan, store: Store) -> str:
    """Return the report as HTML."""
    findings, claims = Findings(plan, store), read_claims(plan.study.folder)
    charts = _charts(findings, claims)
    body = [
        sections.short_answer(findings),
        sections.design(findings),
        sections.cells(findings),
        sections.replicated(findings),
        sections.effects(findings, "forest" in charts),
        sections.together(findings),
        sections.fair(findings),
        sections.overfit(findings, claims, "curves" in charts),
        sections.documents(findings, claims),
        sections.failed(findings),
        evidence.evidence(findings),
        evidence.provenance(findings),
    ]
    written = "".join(body).replace("<section ", '<section class="first" ', 1)
    links = [(name, title) for name, title in LINKS.items() if f'id="{name}"' in written]
    without = "<noscript><p>The two figures need scripts; the tables hold every number.</p></noscript>"
    footer = "<footer>Made by paribus. Nothing in this file asks for anything outside it.</footer>"
    whole = f"{sections.masthead(findings, links)}<main>{without if charts else ''}{written}</main>{footer}"
    return page(plan.study.question or plan.study.name, whole, charts)


def _charts(findings: Findings, claims: Claims) -> dict[str, Any]:
    """Return what the page's script draws; nothing where nothing finished."""
    made: dict[str, Any] = {}
    forest, curves = figures.forest(findings, claims), figures.curves(findings)
    if forest:
        made["forest"] = forest
    if curves and findings.baseline:
        made["curves"] = {
            "spec": curves,
            "panels": figures.curve_panels(findings),
            "axes": findings.axes,
            "base": list(findings.baseline.coordinates.values()),
        }
    return made
