"""What a design could have seen, in every table of contrasts."""

from __future__ import annotations

import csv
import io
from math import sqrt
from statistics import stdev

import pytest
from made_results import plan_of, record

from paribus.compare import tables
from paribus.compare.beside import noise, precision
from paribus.compare.claim import Claims
from paribus.compare.contrast import Rules
from paribus.compare.findings import Findings
from paribus.compare.seeing import seen
from paribus.compare.sheets import comparison, readings
from paribus.plan.design import Plan
from paribus.record.store import Store
from paribus.statistics import power_paired, power_tost


def test_the_smallest_difference_is_found_with_80_percent_power_at_alpha_over_the_family(
    quickstart: tuple[Plan, Store],
) -> None:
    findings = Findings(*quickstart)
    for contrast in findings.primary_contrasts:
        could = seen(contrast, findings.rules)
        if contrast.difference is None:
            assert could is None
            continue
        assert could is not None
        sd, n = stdev(contrast.differences), len(contrast.differences)
        family = [
            c for c in findings.primary_contrasts if c.family == contrast.family and c.holm_p is not None
        ]
        assert contrast.tested == len(family)
        assert power_paired(could.smallest, sd, n, 0.05 / len(family)) == pytest.approx(0.8, abs=1e-6)
        assert could.seeds is not None and power_tost(0.02, sd, could.seeds, 0.05) >= 0.8
        assert could.seeds == 2 or power_tost(0.02, sd, could.seeds - 1, 0.05) < 0.8


def test_every_table_of_contrasts_shows_it(quickstart: tuple[Plan, Store]) -> None:
    findings = Findings(*quickstart)
    by_level = {c.level: seen(c, findings.rules) for c in findings.primary_contrasts}
    for sheet, key in (
        (comparison(findings), "smallest"), (readings(findings), "best_validation.smallest"),
        (precision(findings, Claims()), "smallest"), (noise(findings, Claims()), "smallest"),
    ):  # fmt: skip
        assert sheet is not None and key in [column.key for column in sheet.columns]
        for row in sheet.rows:
            could = by_level.get(row["level"])
            assert row.get(key) == (could.smallest if could else None)
    for sheet in (comparison(findings), readings(findings)):
        assert "Seeds\u00a0for ±0.02" in [column.title for column in sheet.columns]
        assert "Could see: the smallest true difference found with 80\u00a0% power" in sheet.note


def test_seeds_are_asked_for_only_where_no_difference_is_shown(quickstart: tuple[Plan, Store]) -> None:
    rows = [row for row in comparison(Findings(*quickstart)).rows if row.get("smallest") is not None]
    assert {bool(row["enough"]) for row in rows if row["verdict"] in ("better", "worse")} == {False}
    assert {bool(row["enough"]) for row in rows if row["verdict"] not in ("better", "worse")} == {True}


def test_csv_and_json_have_plain_numbers(quickstart: tuple[Plan, Store]) -> None:
    findings = Findings(*quickstart)
    rows = list(csv.DictReader(io.StringIO(tables.csv(*quickstart))))
    ten = next(row for row in rows if row["neftune_noise_alpha"] == "10")
    contrast = next(c for c in tables.rows(*quickstart)["contrasts"] if c["level"] == "10")
    could = seen(next(c for c in findings.primary_contrasts if c.level == "10"), findings.rules)
    assert could is not None
    assert float(ten["smallest_difference"]) == contrast["smallest_difference"] == could.smallest
    assert int(ten["seeds_for_margin"]) == contrast["seeds_for_margin"] == could.seeds
    assert contrast["family_size"] == 2


def test_one_pair_sees_nothing_and_no_margin_asks_for_no_seeds(tmp_path, quickstart) -> None:  # type: ignore[no-untyped-def]
    plan = plan_of(tmp_path / "study", vary="{neftune_noise_alpha: [0, 5]}", seeds="[0]")
    store = Store(tmp_path / "results")
    for job in plan.jobs:
        record(store, job)
    findings = Findings(plan, store)
    assert [seen(contrast, findings.rules) for contrast in findings.primary_contrasts] == [None]
    assert "Could see" not in [column.title for column in comparison(findings).columns]
    paired = Findings(*quickstart).primary_contrasts[0]
    could = seen(paired, Rules(margin=None))
    assert could is not None and (could.seeds, could.seeds_text) == (None, None)


def test_a_margin_that_no_number_of_seeds_reaches_says_so(quickstart: tuple[Plan, Store]) -> None:
    contrast = Findings(*quickstart).primary_contrasts[-2]
    assert contrast.difference is not None and contrast.difference.error
    margin = contrast.difference.error * sqrt(contrast.difference.n) / 1000
    could = seen(contrast, Rules(margin=margin))
    assert could is not None and (could.seeds, could.seeds_text) == (None, ">\u00a010,000")
