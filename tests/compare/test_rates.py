"""Whether a level finishes as often as the baseline: exact, and only where something failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_results import plan_of, record

from paribus.compare import rates, tables
from paribus.compare.findings import Findings
from paribus.compare.report import report
from paribus.plan.design import Plan
from paribus.record.result import Diverged
from paribus.record.store import Store


def test_levels_with_failures_get_an_exact_contrast(quickstart: tuple[Plan, Store]) -> None:
    """None of three against three of three: Fisher's p is 0.1, and the share is at least 8 points lower."""
    found = {one.level.partition(" ")[0]: one for one in rates.rates(Findings(*quickstart))}
    assert set(found) == {"lora", "bitfit"}
    none = found["bitfit"]
    assert (none.finished, none.against, none.fisher_p) == ((0, 3), (3, 3), pytest.approx(0.1))
    assert none.interval is not None
    assert (none.interval.low, none.interval.high) == (-1.0, pytest.approx(-0.0815, abs=1e-4))
    some = found["lora"]  # the one with r = 4
    assert (some.finished, some.fisher_p) == ((2, 3), 1.0)
    assert some.difference is not None and some.difference.mean == pytest.approx(-1 / 3)


def test_they_stand_in_report_and_document(quickstart: tuple[Plan, Store]) -> None:
    html = report(*quickstart)
    assert "Does it finish as often?" in html and "conditional on what finished" in html
    listed = {one["level"]: one for one in tables.rows(*quickstart)["finish_rates"]}
    assert listed["bitfit"]["finished"] == 0 and listed["bitfit"]["baseline_trials"] == 3


def test_nothing_is_said_where_all_finished_or_were_not_run_yet(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "study", vary="{neftune_noise_alpha: [0, 5]}")
    store = Store(tmp_path / "results")
    for job in plan.jobs[:5]:
        record(store, job)
    assert rates.sheet(Findings(plan, store)) is None
    record(store, plan.jobs[5], Diverged(step=1, quantity="loss", value="inf", bound=20.0))
    (one,) = rates.rates(Findings(plan, store))
    assert (one.finished, one.against) == ((2, 3), (3, 3))
