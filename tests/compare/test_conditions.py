"""A level in each condition: only the pairs of that condition count, and they are a family of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from made_results import curve, effect_of, plan_of, record

from paribus.compare import conditions
from paribus.compare.findings import Findings
from paribus.plan.trial import Job
from paribus.record.result import Reading
from paribus.record.store import Store


def clashing(job: Job) -> list[Reading]:
    """Let noise harm by 0.3 beside LoRA alone."""
    both = job.trial.tuning.kind == "lora" and job.trial.neftune_noise_alpha.alpha
    effect = effect_of(job)
    return list(curve(job, replace(effect, shift=effect.shift + 0.3) if both else effect))


def made(folder: Path, vary: str) -> Findings:
    plan, store = plan_of(folder / "study", vary=vary, design="grid"), Store(folder / "results")
    for job in plan.jobs:
        record(store, job, readings=clashing)
    return Findings(plan, store)


def test_each_condition_has_its_own_differences(tmp_path: Path) -> None:
    findings = made(tmp_path, "{neftune_noise_alpha: [0, 5, 10], tuning: [full, lora]}")
    sheet = conditions.sheet(findings)
    assert sheet is not None
    values = findings.values(findings.primary)
    at = {tuple(c.coordinates.values()): c.trials for c in findings.plan.cells}
    assert [row["level"] for row in sheet.rows] == ["5", "10"]
    for row in sheet.rows:
        for tuning in ("full", "lora"):
            by_hand = fmean(
                values[at[row["level"], tuning][s]] - values[at["0", tuning][s]] for s in range(3)
            )
            assert row[f"{tuning}.difference"].mean == pytest.approx(by_hand)
    assert sheet.rows[0]["lora.difference"].mean > sheet.rows[0]["full.difference"].mean + 0.25
    assert [column.spanner for column in sheet.columns[1:]] == ["Tuning full"] * 2 + ["Tuning lora"] * 2


def test_one_condition_or_too_many_are_no_table(tmp_path: Path) -> None:
    assert conditions.sheet(made(tmp_path / "one", "{neftune_noise_alpha: [0, 5]}")) is None
    many = "{neftune_noise_alpha: [0, 5, 10], gradient_accumulation_steps: [1, 2, 4], tuning: [full, lora]}"
    assert conditions.sheet(made(tmp_path / "many", many)) is None
