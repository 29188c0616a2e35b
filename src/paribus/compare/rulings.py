"""The verdict on every claim of the ledger, from what was computed and from the studies that stand here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from paribus.compare import ledger, recompute
from paribus.compare.claim import judge, read_claims
from paribus.compare.findings import Findings
from paribus.errors import ParibusError
from paribus.plan.design import expand
from paribus.plan.lock import pinned
from paribus.plan.study import Compare, Study
from paribus.record.store import Store

if TYPE_CHECKING:
    from paribus.compare.claim import Judged

EXPERIMENTS, RESULTS = Path("experiments"), Path("results/reference")


def ruled(
    experiments: Path = EXPERIMENTS, results: Path = RESULTS, ids: Iterable[str] = ()
) -> list[ledger.Ruling]:
    """Give rows of the ledger, all of them unless some are named, their verdicts.

    Only the studies of these rows are read. One that cannot be read here, say for want of its data, counts as
    not being here; rows that it would have settled say so.
    """
    rows, known = [ledger.row(name) for name in ids] or ledger.ledger().claims, recompute.recorded()
    judged, unread = _judged(rows, experiments, results)
    evidence = f"paribus/compare/{recompute.FILE}"
    return [ledger.rule(row, known, evidence, judged, unread) for row in rows]


def _judged(
    rows: Iterable[ledger.Row], experiments: Path, results: Path
) -> tuple[dict[str, tuple[str, Judged]], dict[str, str]]:
    """Judge each row by the first of its studies that can decide; name those that cannot be read."""
    found: dict[str, tuple[str, Judged]] = {}
    by_study: dict[str, Mapping[str, Judged]] = {}
    unread: dict[str, str] = {}
    for row in rows:
        for study in row.studies:
            if study not in by_study:
                try:
                    by_study[study] = _of_study(experiments / study, results / study)
                except ParibusError as error:
                    by_study[study], unread[study] = {}, error.message
            one = by_study[study].get(row.id)
            if one and (row.id not in found or found[row.id][1].verdict == "not run" != one.verdict):
                found[row.id] = (str(results / study), one)
    return found, unread


def _of_study(folder: Path, results: Path) -> dict[str, Judged]:
    """Judge the claims beside a study; none where it or its results are not here."""
    findings = findings_of(folder, results)
    return {one.claim.id: one for one in judge(read_claims(folder), findings)} if findings else {}


def findings_of(folder: Path, results: Path, rules: Mapping[str, Any] | None = None) -> Findings | None:
    """Read what a study found, or nothing where it or its results are not here.

    `rules` are put in place of what the study declares under `compare`.
    """
    if not (folder / "study.yaml").exists() or not results.is_dir():
        return None
    store = Store(results)
    study = pinned(Study.read(folder), store.root)
    if rules:
        compare = study.compare.model_copy(update=_valid(rules, study.compare.metric))
        study = study.model_copy(update={"compare": compare})
    return Findings(expand(study), store)


def _valid(rules: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    try:
        Compare.model_validate({"metric": metric, **rules})
    except ValidationError as error:
        fault = error.errors()[0]
        name, value = ".".join(map(str, fault["loc"])), fault["input"]
        raise ParibusError(f"{name} cannot be {value!r}", way_out=f"{fault['msg']}.") from error
    return rules
