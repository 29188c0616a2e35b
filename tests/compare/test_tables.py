"""The tables: every planned cell stands in each, numbers agree between forms, absent stays absent."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_results import plan_of, record
from rich.console import Console

from paribus.compare import tables, wording
from paribus.compare.beside import noise
from paribus.compare.claim import Claims
from paribus.compare.findings import Findings
from paribus.compare.sheets import comparison, failures, losses, readings
from paribus.plan.design import Plan
from paribus.record.store import Store
from paribus.statistics import Estimate, Interval


def printed(plan: Plan, store: Store, width: int = 140) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    tables.terminal(plan, store, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_terminal_shows_every_cell_and_why_some_did_not_finish(quickstart: tuple[Plan, Store]) -> None:
    shown = printed(*quickstart)
    for words in (
        "BitFit",
        "0 of 3",
        "2 of 3",
        "fp8 (emulated)",
        "better *",
        "no bias parameters",
    ):
        assert words in shown
    assert "ValueError: no such layer" in shown


def test_csv_has_a_row_a_cell_with_the_same_numbers(quickstart: tuple[Plan, Store]) -> None:
    plan, store = quickstart
    rows = list(csv.DictReader(io.StringIO(tables.csv(plan, store))))
    assert len(rows) == len(plan.cells) == 10
    assert rows[0]["verdict"] == "baseline"
    found = {c.cell.coordinates["neftune_noise_alpha"]: c for c in Findings(plan, store).cells}
    ten = next(row for row in rows if row["neftune_noise_alpha"] == "10")
    contrast = found["10"].contrast
    assert contrast is not None
    assert contrast.difference is not None
    assert float(ten["difference"]) == contrast.difference.mean
    assert int(ten["difference_n"]) == 3
    bitfit = next(row for row in rows if row["tuning"] == "bitfit")
    assert (bitfit["finished"], bitfit["planned"], bitfit["last_mean"], bitfit["difference"]) == (
        "0",
        "3",
        "",
        "",
    )
    assert sum(len(row["trials"].split()) for row in rows) == 30


def test_every_table_with_an_alpha_says_how_loud_it_was(quickstart: tuple[Plan, Store]) -> None:
    plan, store = quickstart
    findings = Findings(plan, store)
    for sheet in (comparison(findings), readings(findings), noise(findings, Claims())):
        assert sheet is not None and "ratio" in [column.key for column in sheet.columns]
        found = {row["level"]: row.get("ratio") for row in sheet.rows if row.get("ratio") is not None}
        assert (found["5"], found["10"]) == (pytest.approx(0.105), pytest.approx(0.21))
        assert "Noise ratio: RMS of NEFTune's noise" in sheet.note
    for width in (80, 120):
        assert "0.105" in printed(plan, store, width) and "ratio" in printed(plan, store, width)
    by_alpha = {
        row["neftune_noise_alpha"]: row for row in csv.DictReader(io.StringIO(tables.csv(plan, store)))
    }
    assert float(by_alpha["10"]["noise_ratio"]) == pytest.approx(0.21) and by_alpha["0"]["noise_ratio"] == ""


def test_json_has_a_row_a_recorded_trial_and_no_other(tmp_path: Path) -> None:
    plan, store = plan_of(tmp_path / "study"), Store(tmp_path / "results")
    for job in plan.jobs[:4]:
        record(store, job)
    document = tables.rows(plan, store)
    assert [row["trial"] for row in document["rows"]] == [job.trial_id for job in plan.jobs[:4]]
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    row = document["rows"][0]
    assert set(row) == {
        "trial", "group", "seed", "outcome", "coordinates", "settings", "metrics", "cost", "resolved",
        "proof", "warnings", "machine_class", "provenance",
    }  # fmt: skip
    assert set(row["metrics"]["test.new_wording.loss"]) == {
        "base", "last", "best_validation", "equal_train_loss",
    }  # fmt: skip
    assert row["settings"]["training"]["epochs"] == 8


def test_a_failed_trial_has_a_reason_and_no_metrics(quickstart: tuple[Plan, Store]) -> None:
    rows = tables.rows(*quickstart)["rows"]
    assert len(rows) == 30
    crashed = [row for row in rows if row["outcome"] == "crashed"]
    assert [(row["metrics"], row["cost"]) for row in crashed] == [({}, {})]
    assert crashed[0]["reason"] == "ValueError: no such layer (in tuning/lora.py:40)"


def test_latex_escapes_and_names_the_characters_it_needs(quickstart: tuple[Plan, Store]) -> None:
    made = tables.latex(*quickstart)
    assert made.count(r"\begin{tabular*}") == made.count(r"\end{tabular*}") >= 4
    assert r"same\_wording" in made
    assert "newunicodechar" in made
    assert not re.search(r"\bnan\b", made, flags=re.I)


def test_an_empty_store_still_has_tables(tmp_path: Path) -> None:
    plan, store = plan_of(tmp_path / "study"), Store(tmp_path / "nothing")
    assert "0 of 3" in printed(plan, store)
    assert "30 of 30 trials have no recorded outcome" in printed(plan, store)
    assert len(tables.csv(plan, store).splitlines()) == 11
    assert tables.rows(plan, store)["rows"] == []
    assert r"\begin{tabular*}" in tables.latex(plan, store)


def test_the_overfitting_table_marks_the_least_validation_loss(quickstart: tuple[Plan, Store]) -> None:
    sheet = losses(Findings(*quickstart), Claims())
    base = [row for row in sheet.rows if row["group"] == "baseline"]
    assert [row["epoch"] for row in base] == [float(epoch) for epoch in range(9)]
    least = next(row for row in base if row["lowest"])
    assert least["epoch"] == 4
    assert least["gap"].mean == base[4]["test"].mean - base[4]["train_sample"].mean


def test_a_grid_shows_every_axis_and_the_averaged_levels(tmp_path: Path) -> None:
    vary = "{gradient_accumulation_steps: [1, 4], neftune_noise_alpha: [0, 5], tuning: [full, lora]}"
    plan = plan_of(tmp_path / "study", vary=vary, design="grid")
    store = Store(tmp_path / "results")
    for job in plan.jobs:
        record(store, job)
    findings = Findings(plan, store)
    columns = [c.key for c in comparison(findings).columns]
    assert columns[:4] == ["gradient_accumulation_steps", "neftune_noise_alpha", "ratio", "tuning"]
    assert len(comparison(findings).rows) == 8
    sheet = readings(findings)
    assert [row["level"] for row in sheet.rows] == ["4", "5", "lora"]
    assert "over 4 settings of the other axes" in sheet.note


def test_failures_carry_exact_rates(quickstart: tuple[Plan, Store]) -> None:
    sheet = failures(Findings(*quickstart))
    assert sheet is not None
    bitfit = next(row for row in sheet.rows if row["cell"] == "Tuning BitFit")
    assert bitfit["rate"] == "0 of 3 [0%, 71%]"
    assert bitfit["seeds"] == "0, 1 and 2"


def test_numbers_are_written_one_way() -> None:
    assert wording.signed(-0.0312) == "−0.031"
    assert wording.signed(-0.0001) == "−0.0001"
    assert wording.signed(3e-8) == "+3e−8"
    assert wording.signed(0.0) == "0"
    assert wording.number(-0.0001) == "0.000"
    assert wording.p_value(0.0004) == "<0.001"
    assert wording.estimate(Estimate(1, 1.5)) == "1.500"
    assert wording.difference(Estimate(3, 0.1, Interval(-0.1, 0.3))) == "+0.100 [−0.100, +0.300]"
    assert wording.level_name("lora r=4 lora_alpha=8.0") == "LoRA r=4 α=8"
    assert wording.level_name("fp8 emulated") == "fp8 (emulated)"


def test_comparing_loads_no_torch() -> None:
    code = (
        "import sys; from paribus.compare import report, tables; import paribus.record.table;"
        "print([m for m in ('torch', 'transformers', 'scipy', 'altair', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
