"""`paribus claims`: 150 rows whose verdicts rest on files, and a check that a planted value fails."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paribus.cli import app
from paribus.compare import ledger, recompute, rulings
from paribus.errors import ParibusError

ROOT = Path(__file__).parents[1]
FOLDERS = ["--experiments", str(ROOT / "experiments"), "--results", str(ROOT / "results/reference")]
IDS = [f"A{i:02d}" for i in range(1, 94)] + [f"B{i:02d}" for i in range(1, 58)]
RUNNER = CliRunner()


@pytest.fixture(scope="module")
def ruled() -> list[ledger.Ruling]:
    return rulings.ruled(ROOT / "experiments", ROOT / "results/reference")


def test_all_150_claims_are_there_in_order_and_each_says_why(ruled: list[ledger.Ruling]) -> None:
    assert [one.row.id for one in ruled] == IDS
    assert all(one.reason for one in ruled)
    assert all(one.basis for one in ruled if one.verdict != "not run")
    assert all(one.row.needs or one.row.studies for one in ruled if one.verdict == "not run")


def test_what_is_computed_is_never_inconclusive(ruled: list[ledger.Ruling]) -> None:
    computed = [one for one in ruled if one.row.id in recompute.rows()]
    assert len(computed) > 100
    assert {one.verdict for one in computed} == {"supported", "contradicted", "not run"}
    unsettled = {one.row.id for one in computed if one.verdict == "not run"}
    assert unsettled == {"A44", "A51", "A54", "A69", "A70", "B28", "B48"}


def test_the_readme_counts_what_the_ledger_says(ruled: list[ledger.Ruling]) -> None:
    told = ", ".join(f"{count} {word}" for word, count in ledger.counts(ruled).items())
    assert told in (ROOT / "README.md").read_text("utf-8")


def test_without_the_evidence_there_is_no_verdict(tmp_path: Path) -> None:
    rows = ledger.ledger().claims
    bare = [ledger.rule(row, {}, "", {}) for row in rows]
    assert {one.verdict for one in bare} == {"not run"}
    gone = rulings.ruled(ROOT / "experiments", tmp_path)
    assert not [one.row.id for one in gone if one.basis == "ran"]


def test_a_contradiction_between_rows_is_known_from_both_or_named_by_one(ruled: list[ledger.Ruling]) -> None:
    by_id = ledger.ledger().by_id
    named = {(row.id, other) for row in by_id.values() for other in row.contradicts}
    assert {("A61", "B11"), ("A34", "A79")} <= named | {(b, a) for a, b in named}
    assert all(other in by_id for _, other in named)


def test_a_claim_in_full_sets_printed_and_computed_side_by_side() -> None:
    done = RUNNER.invoke(app, ["claims", "a19", *FOLDERS])
    assert done.exit_code == 0
    for part in ("contradicted", "0.7443", "0.854355", "computed.json#A19", "article"):
        assert part in done.output


def test_json_is_a_list_of_rows_with_every_printed_number() -> None:
    done = RUNNER.invoke(app, ["claims", "--table", "neftune", "--json", *FOLDERS])
    listed = json.loads(done.stdout)
    assert [one["id"] for one in listed] == ["A44"]
    assert {"quantity": "gain.neftune", "value": 10.2, "unit": "points"} in listed[0]["claimed"]


def test_an_unknown_claim_is_an_error_with_the_nearest_id() -> None:
    done = RUNNER.invoke(app, ["claims", "A0", *FOLDERS])
    assert isinstance(done.exception, ParibusError)
    assert "A0" in str(done.exception)


def test_a_planted_value_makes_the_check_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    known = recompute.recorded()
    right, wrong = known["A08"].numbers[0], known["A08"].numbers[0].model_copy(update={"value": 1.07})
    planted = known["A08"].model_copy(update={"numbers": (wrong, *known["A08"].numbers[1:])})
    monkeypatch.setattr(recompute, "rows", lambda: {"A08": lambda: known["A08"]})
    monkeypatch.setattr(recompute, "recorded", lambda: {"A08": planted})
    done = RUNNER.invoke(app, ["claims", "--check"])
    assert done.exit_code == 1
    assert f"{right.quantity}: 1.07 recorded" in done.output
    monkeypatch.setattr(recompute, "recorded", lambda: {"A08": known["A08"]})
    assert RUNNER.invoke(app, ["claims", "--check"]).exit_code == 0


def test_what_is_recorded_is_what_the_package_ships() -> None:
    text = (files("paribus.compare") / recompute.FILE).read_text("utf-8")
    assert recompute.as_recorded(recompute.recorded()) == text


@pytest.mark.parametrize("study", sorted(p.parent.name for p in (ROOT / "experiments").glob("*/claims.yaml")))
def test_a_study_speaks_of_claims_of_the_ledger(study: str) -> None:
    from paribus.compare.claim import read_claims

    by_id = ledger.ledger().by_id
    for claim in read_claims(ROOT / "experiments" / study).claims:
        assert claim.document == by_id[claim.id].document
        if claim.checks:
            assert study in by_id[claim.id].studies + by_id[claim.id].ready
