"""Intervals for new seeds and new items, from what is recorded of single items."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from made_results import items_of, plan_of, record

from paribus.compare import tables
from paribus.compare.answer import short_answer
from paribus.compare.findings import Findings
from paribus.compare.items import within_seeds
from paribus.compare.seeing import seen
from paribus.compare.sheets import comparison, readings
from paribus.errors import RecordError
from paribus.plan.design import Plan
from paribus.record.store import Store
from paribus.statistics import components, equivalence_power, error_of_mean

VARY = "{neftune_noise_alpha: [0, 5, 10]}"


def made(
    folder: Path, estimand: str, *, items: bool = True, seeds: str = "[0, 1, 2, 3, 4]"
) -> tuple[Plan, Store]:
    compare = f", estimand: {estimand}"
    plan = plan_of(folder / estimand, vary=VARY, seeds=seeds, compare=compare)
    store = Store(folder / f"{estimand} results")
    for job in plan.jobs:
        record(store, job, items=items_of if items else None)
    return plan, store


@pytest.fixture
def both(tmp_path: Path) -> tuple[Findings, Findings]:
    return (
        Findings(*made(tmp_path, "new_seeds_these_items")),
        Findings(*made(tmp_path, "new_seeds_and_items")),
    )


def test_an_items_values_average_to_the_metric(both: tuple[Findings, Findings]) -> None:
    findings = both[1]
    items, values = findings.items("last", findings.metric), findings.values("last")
    assert items is not None and set(items) == set(values)
    for trial_id, by_item in items.items():
        assert len(by_item) == 10
        assert fmean(by_item.values()) == pytest.approx(values[trial_id], abs=1e-9)


def test_the_mean_stays_and_the_interval_speaks_of_more(both: tuple[Findings, Findings]) -> None:
    seeds, crossed = ({c.level: c for c in findings.primary_contrasts} for findings in both)
    for level in ("5", "10"):
        ours, theirs = crossed[level].difference, seeds[level].difference
        assert ours is not None and theirs is not None
        assert (ours.n, ours.mean) == (5, pytest.approx(theirs.mean, abs=1e-9))
        parts = crossed[level].parts
        assert parts is not None and (parts.seeds, parts.items) == (5, 10)
        assert ours.error == pytest.approx(error_of_mean(parts, 5, "new_seeds_and_items")[0])
        assert theirs.error == pytest.approx(error_of_mean(parts, 5, "new_seeds_these_items")[0])
        assert crossed[level].tost_p is not None and seeds[level].parts is None


def test_the_crossed_contrast_is_the_analysis_of_seeds_and_items(both: tuple[Findings, Findings]) -> None:
    findings = both[1]
    items = findings.items(findings.primary, findings.metric)
    contrast = next(c for c in findings.primary_contrasts if c.level == "10")
    assert items is not None
    pairs = [(items[treated], items[untreated]) for treated, untreated in contrast.matched]
    table = [[ours[item] - theirs[item] for item in sorted(ours)] for ours, theirs in pairs]
    assert contrast.parts == components(table)


def test_more_seeds_cannot_make_up_for_few_items(both: tuple[Findings, Findings]) -> None:
    findings = both[1]
    contrast = next(c for c in findings.primary_contrasts if c.level == "10")
    could, parts = seen(contrast, findings.rules), contrast.parts
    assert could is not None and parts is not None
    if could.seeds is not None:
        error, freedom = error_of_mean(parts, could.seeds, "new_seeds_and_items")
        assert equivalence_power(0.02, error, freedom) >= 0.8
    error, _ = error_of_mean(parts, 10_000, "new_seeds_and_items")
    assert error >= (parts.item / parts.items) ** 0.5 * 0.999


def test_tables_and_report_say_what_intervals_speak_of(both: tuple[Findings, Findings]) -> None:
    assert "t intervals over seeds, differences" in comparison(both[0]).note
    assert "t intervals over seeds and items, crossed" in comparison(both[1]).note
    document = tables.rows(both[1].plan, both[1].store)
    assert document["estimand"] == "new_seeds_and_items"
    primary = next(c for c in document["contrasts"] if c["level"] == "10")
    assert set(primary["variances"]) == {"seed", "item", "residual"}


def test_a_cells_mean_speaks_of_new_items_too(both: tuple[Findings, Findings]) -> None:
    seeds, crossed = (findings.cells[0].estimates["last"] for findings in both)
    assert crossed.mean == pytest.approx(seeds.mean, abs=1e-9)
    assert crossed.error is not None and seeds.error is not None and crossed.error > seeds.error
    assert both[1].cells[0].estimates["equal_train_loss"].interval is None


def test_a_reading_without_items_has_a_mean_and_no_interval(both: tuple[Findings, Findings]) -> None:
    row = next(row for row in readings(both[1]).rows if row["level"] == "10")
    found = row["equal_train_loss.difference"]
    assert found.mean is not None and found.interval is None and row["equal_train_loss.holm_p"] is None


def test_items_that_were_not_recorded_are_an_error_with_a_way_out(tmp_path: Path) -> None:
    plan, store = made(tmp_path, "new_seeds_and_items", items=False)
    with pytest.raises(RecordError, match="these were not recorded") as caught:
        Findings(plan, store).primary_contrasts  # noqa: B018
    assert "new_seeds_these_items" in str(caught.value) and ".parquet" in str(caught.value)


def test_within_one_seed_the_items_are_paired(tmp_path: Path) -> None:
    findings = Findings(*made(tmp_path, "new_seeds_these_items", seeds="[0]"))
    contrast = next(c for c in findings.primary_contrasts if c.level == "10")
    (found,) = within_seeds(findings, contrast)
    assert (found.seed, found.items, found.method) == (0, 10, "clustered")
    assert contrast.difference is not None
    assert found.estimate.mean == pytest.approx(contrast.difference.mean, abs=1e-9)
    point = next(point for point in short_answer(findings) if point.head == "One pair only")
    assert any("on the 10 items of seed 0 alone" in item for item in point.items)


def test_right_and_wrong_are_compared_by_mcnemar(tmp_path: Path) -> None:
    """One example a target, as a classifier has them: six right with noise alone, one without it alone."""
    plan = plan_of(
        tmp_path / "study", vary="{neftune_noise_alpha: [0, 5]}", seeds="[0]",
    )  # fmt: skip
    store = Store(tmp_path / "results")

    def right(job, readings):  # type: ignore[no-untyped-def]
        noisy = bool(job.trial.neftune_noise_alpha.alpha)
        own = {0, 1, 2, 3, 4, 5, 7} if noisy else {6, 7}
        return [
            {"step": r.step, "split": r.split, "group": r.group, "example_id": str(i), "targets": 1,
             "correct": int(i in own), "loss_sum": 1.0}
            for r in readings for i in range(12)
        ]  # fmt: skip

    for job in plan.jobs:
        record(store, job, items=right)
    findings = Findings(plan, store)
    accuracy = next(m for m in findings.metrics() if str(m) == "test.same_wording.accuracy")
    (contrast,) = findings.contrasts(metric=accuracy)
    (found,) = within_seeds(findings, contrast)
    assert (found.method, found.estimate.mean) == ("mcnemar", pytest.approx(5 / 12))
    assert found.estimate.p == pytest.approx(0.125)  # 2 * (1 + 7) / 2**7
