"""Claims beside a study: how they are read, where they are wrong, and the verdict each gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_results import curve, effect_of, plan_of, record

from paribus.compare.answer import short_answer
from paribus.compare.claim import Claims, Judged, band, judge, read_claims
from paribus.compare.findings import Findings
from paribus.errors import ParibusError
from paribus.plan.design import Plan
from paribus.record.store import Store

ROOT = Path(__file__).parents[2]


def claims(**claim: Any) -> Claims:
    row = {"id": "A01", "document": "article", "says": "something", **claim}
    return Claims.model_validate({"claims": [row]})


def difference(axis: str, level: Any, expected: Any, **more: Any) -> dict[str, Any]:
    return {"kind": "difference", "axis": axis, "level": level, "expected": expected, **more}


def judged(found: tuple[Plan, Store], *checks: dict[str, Any], **claim: Any) -> Judged:
    return judge(claims(checks=list(checks), **claim), Findings(*found))[0]


@pytest.mark.parametrize("study", ["quickstart", "four_axes", "smollm2_gsm8k", "accumulation"])
def test_the_shipped_claims_are_well_formed(study: str) -> None:
    found = read_claims(ROOT / "experiments" / study)
    assert len(found.claims) >= 5
    assert all(claim.says and claim.lines for claim in found.claims)


def test_no_file_means_no_claims(tmp_path: Path) -> None:
    assert read_claims(tmp_path).claims == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("claims:\n  - {id: A, document: d, says: s, nots_run: x}\n", r":2.*nots_run"),
        ("claims:\n  - {id: A, document: d, says: s}\n", r":2.*needs checks"),
        (
            "claims:\n  - {id: A, document: d, says: s, not_run: x}\n"
            "  - {id: A, document: d, says: s, not_run: x}\n",
            r":3.*twice",
        ),
        ("claims:\n  - id: [\n", r"claims.yaml:\d"),
        (
            "claims:\n  - id: A\n    document: d\n    says: s\n    checks:\n"
            "      - {kind: difference, axis: a, level: l, expected: equal, tolerance: 1}\n",
            r":6.*belongs to a number; equal is judged by the study's margin",
        ),
        ("claims:\n  - {id: A, document: d, says: s, checks: [{kind: shape, pattern: v}]}\n", r":2.*pattern"),
    ],
)
def test_a_malformed_file_is_an_error_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "claims.yaml").write_text(text)
    with pytest.raises(ParibusError, match=said) as caught:
        read_claims(tmp_path)
    assert "claims.yaml" in str(caught.value)


def test_a_direction_is_judged_by_the_side_of_zero(quickstart: tuple[Plan, Store]) -> None:
    assert judged(quickstart, difference("neftune_noise_alpha", 10, "better")).verdict == "supported"
    assert judged(quickstart, difference("neftune_noise_alpha", 10, "worse")).verdict == "contradicted"
    bf16 = judged(quickstart, difference("precision", "bf16", "worse"))
    assert (bf16.verdict, bf16.reason) == ("inconclusive", "the interval contains zero")
    assert "Precision bf16 (emulated)" in bf16.ours


def test_a_number_is_judged_by_its_interval(quickstart: tuple[Plan, Store]) -> None:
    lora = difference("tuning", "lora", -0.115)
    assert judged(quickstart, {**lora, "tolerance": 0.1}).verdict == "supported"
    assert judged(quickstart, {**lora, "tolerance": 0.001}).verdict == "inconclusive"
    assert judged(quickstart, {**lora, "expected": 0.5}).verdict == "contradicted"


def test_equality_needs_equivalence_and_a_control_that_was_seen(tmp_path: Path) -> None:
    check = difference("gradient_accumulation_steps", 4, "equal")
    for compare, expected in (
        ("", "no control known to harm"),
        (", controls: [{neftune_noise_alpha: 40}]", ""),
    ):
        plan = plan_of(tmp_path / f"s{len(compare)}", compare=compare)
        store = Store(tmp_path / f"r{len(compare)}")
        for job in plan.jobs:
            harm = 1.0 if job.trial.neftune_noise_alpha.alpha == 40 else 0.0
            effect = replace(effect_of(job), shift=effect_of(job).shift + harm)
            record(store, job, readings=lambda j, e=effect: curve(j, e))
        found = judged((plan, store), check)
        assert found.verdict == ("inconclusive" if expected else "supported")
        assert expected in found.reason


def test_equality_is_contradicted_beyond_the_margin(quickstart: tuple[Plan, Store]) -> None:
    assert judged(quickstart, difference("neftune_noise_alpha", 10, "equal")).verdict == "contradicted"
    assert judged(quickstart, difference("precision", "fp8", "equal")).verdict == "inconclusive"


def test_outside_its_scope_a_claim_is_not_run_and_our_figure_stands_beside_it(
    quickstart: tuple[Plan, Store],
) -> None:
    check = difference("neftune_noise_alpha", 5, "better")
    for scope, said in (
        ({"metric": "win rate"}, "about win rate"),
        ({"model": "Llama-2-7B"}, "this study trains embedded"),
        ({"hardware": "NVIDIA H100"}, "this ran on cpu"),
    ):
        found = judged(quickstart, check, scope=scope)
        assert found.verdict == "not run"
        assert said in found.reason
        assert "n = 3" in found.ours
    assert judged(quickstart, check, scope={"hardware": "cpu", "model": "embedded"}).verdict == "supported"


def test_several_statements_hold_only_together(quickstart: tuple[Plan, Store]) -> None:
    good, bad = (difference("neftune_noise_alpha", 10, word) for word in ("better", "worse"))
    open_ = difference("precision", "bf16", "worse")
    assert judged(quickstart, good, open_).verdict == "inconclusive"
    assert judged(quickstart, good, open_, bad).verdict == "contradicted"


def test_what_the_study_has_not_is_not_run(quickstart: tuple[Plan, Store]) -> None:
    assert "no level 7" in judged(quickstart, difference("neftune_noise_alpha", 7, "better")).reason
    assert "no pair of BitFit" in judged(quickstart, difference("tuning", "bitfit", "better")).reason
    assert judge(claims(not_run="needs a judge"), Findings(*quickstart))[0].reason == "needs a judge"


def test_the_shapes_of_overfitting(quickstart: tuple[Plan, Store]) -> None:
    for pattern in ("train_falls", "validation_u", "gap_grows"):
        found = judged(quickstart, {"kind": "shape", "pattern": pattern})
        assert found.verdict == "supported"
        assert found.ours.endswith("in 3 of 3 seeds")


def test_a_number_without_a_tolerance_has_half_a_unit_of_its_last_digit() -> None:
    for number, half in ((0.5, 0.05), (-0.115, 0.0005), (75.4, 0.05), (5, 0.5), (1e-4, 0.5e-4), (100, 0.5)):
        found = band(number, None)
        assert (found.high - found.low) / 2 == pytest.approx(half)
        assert found.contains(number + half)
        assert not found.contains(number + 1.001 * half)
    exact = band(0.5, 0)
    assert exact.contains(0.5)
    assert not exact.contains(0.5 + 1e-9)


def test_a_margin_counts_for_its_own_metric_alone(quickstart: tuple[Plan, Store]) -> None:
    check = difference("gradient_accumulation_steps", 4, "equal", metric="test.same_wording.accuracy")
    found = judged(quickstart, check)
    assert (found.verdict, "a margin for test.same_wording.loss alone" in found.reason) == (
        "inconclusive",
        True,
    )


def test_a_figure_says_that_trials_did_not_finish(quickstart: tuple[Plan, Store]) -> None:
    found = judged(quickstart, difference("tuning", "lora r=4 lora_alpha=8", "better"))
    assert "n = 2, conditional: 2 of 3 finished against 3 of 3 of the baseline" in found.ours
    assert "conditional" not in judged(quickstart, difference("tuning", "lora", "better")).ours


def test_arms_scored_on_different_tokens_are_not_compared(tmp_path: Path) -> None:
    plan, store = plan_of(tmp_path / "s", vary="{data.loss_on: [completion, all]}"), Store(tmp_path / "r")
    for job in plan.jobs:
        targets = 400 if job.trial.data.loss_on == "completion" else 900
        other = [r.model_copy(update={"targets": targets}) for r in curve(job, effect_of(job))]
        record(store, job, readings=lambda j, found=other: found)
    found = judged((plan, store), difference("data.loss_on", "all", "better"))
    said = "Evaluation set: targets 900 against 400."
    assert (found.verdict, found.reason) == ("not run", f"not a fair comparison. {said}")
    point = next(p for p in short_answer(Findings(plan, store)) if p.head == "Not a fair comparison")
    assert [item.endswith(f" {said}") for item in point.items] == [True]


def test_without_a_training_sample_its_shapes_are_not_run(tmp_path: Path) -> None:
    plan, store = plan_of(tmp_path / "s", vary="{neftune_noise_alpha: [0, 5]}"), Store(tmp_path / "r")
    for job in plan.jobs:
        kept = [r for r in curve(job, effect_of(job)) if r.split != "train_sample"]
        record(store, job, readings=lambda j, found=kept: found)
    for pattern, verdict in (
        ("train_falls", "not run"),
        ("gap_grows", "not run"),
        ("validation_u", "supported"),
    ):
        assert judged((plan, store), {"kind": "shape", "pattern": pattern}).verdict == verdict
