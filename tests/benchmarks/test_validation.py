"""The validation of the statistics runs, shows all it ran and would notice a method that errs too often."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "benchmarks" / "statistics"


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """Validate on few studies; what promises something must hold within their simulation error."""
    folder = tmp_path_factory.mktemp("validation")
    command = [sys.executable, str(HERE / "validate.py"), "--studies", "40", "--to", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def rows(folder: Path) -> list[dict]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))["rows"]


def named(row: dict) -> tuple[str, str, str]:
    return row["topic"], row["scenario"], row["measure"]


def test_the_committed_page_shows_every_scenario_that_runs(small):
    assert [named(row) for row in rows(small)] == [named(row) for row in rows(HERE)]
    page = (HERE / "README.md").read_text(encoding="utf-8")
    assert all(f"| {row['scenario']} | {row['measure']} |" in page for row in rows(HERE))
    assert {row["of"] >= 200 for row in rows(HERE)} == {True}


def test_what_was_promised_held_in_the_committed_run():
    assert [named(row) for row in rows(HERE) if row["holds"] is False] == []
    assert "does not hold" not in (HERE / "README.md").read_text(encoding="utf-8")


def test_a_fixed_interval_read_after_every_look_would_be_noticed(small, monkeypatch):
    """The same scenarios without boundaries err several times too often, and the rule says so."""
    monkeypatch.syspath_prepend(str(HERE))
    from rows import Row

    read_often = [row for row in rows(small) if row["measure"] == "a fixed interval, read as often, errs"]
    assert len(read_often) == 2
    for row in read_often:
        shown = Row(**{key: value for key, value in row.items() if key != "holds"})
        assert shown.holds is None
        assert replace(shown, nominal=0.05, rule="at most").holds is False


@pytest.mark.parametrize(
    ("rule", "nominal", "observed", "of", "holds"),
    [
        ("about", 0.05, 0.06, 2000, True),
        ("about", 0.05, 0.02, 2000, False),
        ("at most", 0.05, 0.02, 2000, True),
        ("at most", 0.05, 0.08, 2000, False),
        ("at most", 0.0, 0.001, 2000, False),
        ("at least", 0.95, 0.99, 2000, True),
        ("at least", 0.95, 0.92, 2000, False),
        ("covers", 0.95, 0.941, 100_000, True),
        ("covers", 0.95, 0.938, 100_000, False),
        ("covers", 0.95, 0.99, 2000, False),
        ("shown", 0.95, 0.5, 2000, None),
    ],
)
def test_a_rule_can_fail(monkeypatch, rule, nominal, observed, of, holds):
    monkeypatch.syspath_prepend(str(HERE))
    from rows import Row

    assert Row("", "", "", nominal, observed, of, rule).holds is holds
