"""Planned power: from a spread that is given, recorded here or for reference; else how to give one."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import stdev

import pytest
from made_results import items_of, plan_of, record
from typer.testing import CliRunner

from paribus import cli
from paribus.compare.findings import Findings
from paribus.compare.planned import lines, planned_power
from paribus.errors import RecordError
from paribus.record.store import Store
from paribus.statistics import pairs_needed_tost, power_paired, smallest_difference

VARY = "{neftune_noise_alpha: [0, 5, 10], tuning: [full, lora]}"


def test_a_given_spread_plans_every_axis(tmp_path: Path) -> None:
    """Five seeds and 0.02: the smallest difference has 80 % power at alpha over the levels of the axis."""
    plan = plan_of(tmp_path / "s", vary=VARY, seeds="[0, 1, 2, 3, 4]", compare=", expected_sd: 0.02")
    power = planned_power(plan, Store(tmp_path / "none"))
    assert power is not None and power.source == "compare.expected_sd"
    found = {one.axis: one for one in power.axes}
    assert [(one.levels, one.seeds, one.sd) for one in power.axes] == [
        (2, 5, pytest.approx(0.02)), (1, 5, pytest.approx(0.02)),
    ]  # fmt: skip
    noise = found["neftune_noise_alpha"]
    assert power_paired(noise.smallest_difference, 0.02, 5, 0.05 / 2) == pytest.approx(0.8, abs=1e-6)
    assert noise.seeds_for_margin == pairs_needed_tost(0.02, 0.02) == 11
    said = list(lines(plan, power))
    assert said[1].startswith("  NEFTune α: with 5 seeds a difference of 0.041 can be seen; ")
    assert said[1].endswith("equivalence within ±0.02 needs 11 seeds")


def test_a_family_of_the_study_shares_alpha_among_all(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "s", vary=VARY, compare=", expected_sd: 0.02, family: study")
    power = planned_power(plan, Store(tmp_path / "none"))
    assert power is not None and [one.levels for one in power.axes] == [3, 3]
    assert len(list(lines(plan, power))) == 2  # both axes have the same numbers, and stand in one line


def test_recorded_differences_plan_more_seeds_by_the_widest_spread(tmp_path: Path) -> None:
    """Three seeds are recorded; the study now asks for six."""
    store = Store(tmp_path / "results" / "quickstart")
    for job in plan_of(tmp_path / "s", vary=VARY).jobs:
        record(store, job)
    plan = plan_of(tmp_path / "s", vary=VARY, seeds="[0, 1, 2, 3, 4, 5]")
    power = planned_power(plan, store)
    assert power is not None and power.source == str(store.root)
    spreads = [stdev(c.differences) for c in Findings(plan, store).primary_contrasts if c.axis != "tuning"]
    noise = power.axes[0]
    assert (noise.seeds, noise.sd) == (6, pytest.approx(max(spreads)))
    assert noise.smallest_difference == pytest.approx(smallest_difference(max(spreads), 6, 0.05 / 2))
    assert noise.seeds_for_margin == pairs_needed_tost(0.02, max(spreads))


def test_reference_results_serve_where_nothing_ran_here(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "s", vary=VARY)
    reference = Store(tmp_path / "results" / "reference" / "quickstart")
    for job in plan.jobs:
        record(reference, job)
    power = planned_power(plan, Store(tmp_path / "results" / "quickstart"))
    assert power is not None and power.source == str(reference.root)


def test_controls_and_single_seeds_are_not_planned_for(tmp_path: Path) -> None:
    compare = ", expected_sd: 0.02, controls: [{neftune_noise_alpha: 40}]"
    power = planned_power(plan_of(tmp_path / "s", vary=VARY, compare=compare), Store(tmp_path / "none"))
    assert power is not None and power.axes[0].levels == 2
    single = plan_of(tmp_path / "one", vary=VARY, seeds="[0]", compare=", expected_sd: 0.02")
    alone = planned_power(single, Store(tmp_path / "none"))
    assert alone is not None and alone.axes == ()


def test_an_unknown_spread_says_how_to_give_one(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "s", vary=VARY)
    assert planned_power(plan, Store(tmp_path / "none")) is None
    (line,) = lines(plan, None)
    assert "compare: {expected_sd: ...} in nats per token" in line


def test_a_study_that_ends_when_decided_plans_no_power(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "s", vary=VARY, seeds="3..5, until: decided", compare=", expected_sd: 0.02")
    assert planned_power(plan, Store(tmp_path / "none")) is None
    assert list(lines(plan, None)) == ["Power is not planned: seeds are added until all is decided."]


def test_more_seeds_do_not_narrow_what_the_items_leave_open(tmp_path: Path) -> None:
    compare = ", estimand: new_seeds_and_items"
    store = Store(tmp_path / "results" / "quickstart")
    seeds = "[0, 1, 2, 3, 4]"
    for job in plan_of(tmp_path / "s", vary=VARY, seeds=seeds, compare=compare).jobs:
        record(store, job, items=items_of)
    few, many = (
        planned_power(plan_of(tmp_path / "s", vary=VARY, seeds=str([*range(n)]), compare=compare), store)
        for n in (5, 400)
    )
    assert few is not None and many is not None
    error = many.axes[0].sd / 400**0.5  # with hardly any left from seeds
    items = [
        c.parts.item / c.parts.items
        for c in Findings(
            plan_of(tmp_path / "s", vary=VARY, seeds=seeds, compare=compare), store
        ).primary_contrasts
        if c.axis != "tuning" and c.parts
    ]
    assert error**2 >= 0.99 * min(items)


def test_missing_items_are_an_error_while_planning(tmp_path: Path) -> None:
    seeds, compare = "[0, 1, 2, 3, 4]", ", estimand: new_seeds_and_items"
    plan = plan_of(tmp_path / "s", vary=VARY, seeds=seeds, compare=compare)
    store = Store(tmp_path / "results" / "quickstart")
    for job in plan.jobs:
        record(store, job)
    with pytest.raises(RecordError, match="these were not recorded"):
        planned_power(plan, store)


def test_the_command_prints_it_and_the_document_has_it() -> None:
    shown = CliRunner().invoke(cli.app, ["plan", "experiments/quickstart", "--json"])
    document = json.loads(shown.stdout)
    assert document["power"]["source"].endswith("quickstart")
    noise = next(one for one in document["power"]["axes"] if one["axis"] == "neftune_noise_alpha")
    assert noise["seeds"] == 3 and 0.1 < noise["smallest_difference"] < 1
