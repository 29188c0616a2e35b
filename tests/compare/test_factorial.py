"""Main effects and interactions of a grid, in the report's own numbers and by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from made_results import curve, effect_of, plan_of, record

from paribus.compare import factorial, tables
from paribus.compare.findings import Findings
from paribus.compare.report import report
from paribus.plan.design import Plan
from paribus.plan.trial import Job
from paribus.record.result import Diverged, Reading
from paribus.record.store import Store
from paribus.statistics import paired_difference

VARY = "{gradient_accumulation_steps: [1, 4], neftune_noise_alpha: [0, 5], tuning: [full, lora]}"


def clashing(job: Job) -> list[Reading]:
    """Let noise harm by 0.3 beside LoRA alone, so that the two do not add up."""
    both = job.trial.tuning.kind == "lora" and job.trial.neftune_noise_alpha.alpha
    effect = effect_of(job)
    return list(curve(job, replace(effect, shift=effect.shift + 0.3) if both else effect))


@pytest.fixture
def grid(tmp_path: Path) -> tuple[Plan, Store]:
    plan, store = plan_of(tmp_path / "study", vary=VARY, design="grid"), Store(tmp_path / "results")
    for job in plan.jobs:
        record(store, job, readings=clashing)
    return plan, store


def test_an_interaction_is_a_difference_of_differences_over_the_third_axis(grid: tuple[Plan, Store]) -> None:
    findings = Findings(*grid)
    values = findings.values(findings.primary)
    at = {tuple(c.coordinates.values()): c.trials for c in findings.plan.cells}
    by_hand = [
        fmean(
            values[at[a, "5", "lora"][s]] - values[at[a, "0", "lora"][s]]
            - values[at[a, "5", "full"][s]] + values[at[a, "0", "full"][s]]
            for a in ("1", "4")
        )
        for s in range(3)
    ]  # fmt: skip
    found = {one.effect.levels: one for one in factorial.interactions(findings)}
    assert set(found) == {("4", "5"), ("4", "lora"), ("5", "lora")}
    clash = found["5", "lora"]
    assert clash.estimate == paired_difference(by_hand)
    assert clash.estimate is not None and 0.25 < clash.estimate.mean < 0.35
    assert clash.holm_p is not None and clash.estimate.p is not None
    assert clash.holm_p == pytest.approx(3 * clash.estimate.p)


def test_main_effects_of_a_whole_grid_are_the_contrasts(grid: tuple[Plan, Store]) -> None:
    findings = Findings(*grid)
    found = [(one.effect.levels[0], one.estimate, one.holm_p) for one in factorial.main_effects(findings)]
    contrasts = [(c.level, c.difference, c.holm_p) for c in findings.primary_contrasts]
    assert [(level, p) for level, _, p in found] == [(level, pytest.approx(p)) for level, _, p in contrasts]
    for (_, ours, _), (_, theirs, _) in zip(found, contrasts, strict=True):
        assert ours is not None and theirs is not None
        assert (ours.n, ours.mean) == (theirs.n, pytest.approx(theirs.mean))


def test_the_report_says_which_effects_do_not_add_up(grid: tuple[Plan, Store]) -> None:
    findings = Findings(*grid)
    said = factorial.summary(findings)
    assert said is not None
    assert said[0] == "Effects that change when techniques are combined:"
    assert len(said[1]) == 1 and said[1][0].startswith("NEFTune α 5 with Tuning LoRA: +0.")
    html = report(*grid)
    assert 'id="together"' in html and "NEFTune α 5 with Tuning LoRA" in html and 'href="#together"' in html


def test_effects_that_add_up_are_said_to_with_what_could_have_been_seen(tmp_path: Path) -> None:
    plan, store = plan_of(tmp_path / "study", vary=VARY, design="grid"), Store(tmp_path / "results")
    for job in plan.jobs:
        record(store, job)
    findings = Findings(plan, store)
    smallest = sorted(one.smallest or 0.0 for one in factorial.interactions(findings))
    said = factorial.summary(findings)
    assert said is not None and said[1] == ()
    assert said[0].startswith("None of the 3 two-way interactions is told from zero; the smallest that could")
    assert f"{smallest[0]:.3f} to {smallest[-1]:.3f}" in said[0]


def test_a_failed_cell_leaves_its_setting_out_and_marks_the_row(
    grid: tuple[Plan, Store], tmp_path: Path
) -> None:
    plan, store = grid[0], Store(tmp_path / "half")
    failed = plan.cells[-1].trials[2]  # 4, 5, lora
    for job in plan.jobs:
        gone = Diverged(step=3, quantity="loss", value="nan", bound=20.0) if job.trial_id == failed else None
        record(store, job, gone, readings=clashing)
    findings = Findings(plan, store)
    found = {one.effect.levels: one for one in factorial.interactions(findings)}
    assert found["5", "lora"].effect.contexts == 1 and found["5", "lora"].conditional
    main = {one.effect.levels[0]: one for one in factorial.main_effects(findings)}
    assert [main[level].effect.contexts for level in ("4", "5", "lora")] == [3, 3, 3]
    sheet = factorial.sheet(findings)
    assert sheet is not None and sheet.rows[-1]["level"] == "NEFTune α 5 *"


def test_json_has_both_and_other_designs_neither(
    grid: tuple[Plan, Store], quickstart: tuple[Plan, Store]
) -> None:
    document = tables.rows(*grid)
    assert [one["levels"] for one in document["main_effects"]] == [["4"], ["5"], ["lora"]]
    clash = next(one for one in document["interactions"] if one["levels"] == ["5", "lora"])
    assert clash["axes"] == ["neftune_noise_alpha", "tuning"] and clash["contexts"] == 2
    assert clash["low"] < clash["difference"] < clash["high"] and clash["smallest_difference"] > 0
    other = tables.rows(*quickstart)
    assert (other["main_effects"], other["interactions"]) == ([], [])
    assert factorial.sheet(Findings(*quickstart)) is None
