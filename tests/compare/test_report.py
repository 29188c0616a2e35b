"""The report: one file, no request, every section from the numbers, no error for want of results."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_results import Effect, curve, effect_of, plan_of, record, usual_outcome

from paribus.compare.answer import short_answer
from paribus.compare.beside import precision
from paribus.compare.claim import Claims
from paribus.compare.figures import curve_panels, forest
from paribus.compare.findings import Findings
from paribus.compare.report import report, write_report
from paribus.plan.design import Plan
from paribus.record.result import Crashed, Diverged, Killed, OutOfMemory, Skipped
from paribus.record.store import Store
from paribus.sources.blocks import PathModel

ROOT = Path(__file__).parents[2]
VOID = {"meta", "link", "br", "img", "input", "hr"}


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARIBUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class Reader(HTMLParser):
    """Checks that elements are closed in order, and collects what a test asks about."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def scripts(html: str) -> list[str]:
    return re.findall(r'<script type="module">(.*?)</script>', html, flags=re.S)


def test_one_file_that_asks_for_nothing(quickstart: tuple[Plan, Store], tmp_path: Path) -> None:
    path = write_report(*quickstart, tmp_path / "new folder" / "bericht ü.html")
    html = path.read_text(encoding="utf-8")
    reader = Reader(html)
    assert not [a for a in reader.attributes if a[1] in ("src", "srcset", "data", "action")]
    assert all(value and value.startswith("#") for tag, name, value in reader.attributes if name == "href")
    policy = next(v for _, name, v in reader.attributes if name == "content" and v and "default-src" in v)
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts(html)]
    assert len(hashes) == 2
    assert all(f"'sha256-{one}'" in policy for one in hashes)
    assert "vegaEmbed" in scripts(html)[0]
    assert len(html) < 1_500_000


def test_every_section_and_anchor_is_there_once(quickstart: tuple[Plan, Store]) -> None:
    reader = Reader(report(*quickstart))
    wanted = ["answer", "design", "cells", "effects", "overfitting", "failed", "evidence", "provenance"]
    assert [one for one in wanted if one in reader.ids] == wanted
    assert len(set(reader.ids)) == len(reader.ids)
    links = [str(value)[1:] for _, name, value in reader.attributes if name == "href"]
    assert set(links) <= set(reader.ids)


def test_the_numbers_of_the_article_stand_beside_ours(quickstart: tuple[Plan, Store], tmp_path: Path) -> None:
    plan, store = plan_of(tmp_path / "study"), quickstart[1]
    shutil.copy(ROOT / "experiments" / "quickstart" / "claims.yaml", plan.study.folder)
    text = Reader(report(plan, store)).text
    for words in (
        "emulated: an optimistic bound", "<0.5%", "32 GB", "not run", "75.4%", "Noise ratio 0.105",
        "A04", "supported", "this study measures test.same_wording.loss",
    ):  # fmt: skip
        assert words.replace(" 0.105", "") in text
    assert "0.105" in text


def test_every_trial_is_listed_and_every_failure_has_its_reason(quickstart: tuple[Plan, Store]) -> None:
    plan, store = quickstart
    text = Reader(report(plan, store)).text
    assert all(job.trial_id in text for job in plan.jobs)
    assert "bitfit: the model has no bias parameters. Use a model with biases" in text
    assert "2 of 3" in text


def test_figures_hold_the_numbers_of_the_tables(quickstart: tuple[Plan, Store]) -> None:
    html = report(*quickstart)
    charts = json.loads(re.findall(r'id="charts">(.*?)</script>', html, flags=re.S)[0])
    assert charts["curves"]["axes"] == list(quickstart[0].axes)
    panels = curve_panels(Findings(*quickstart))
    assert json.loads(json.dumps(panels)) == charts["curves"]["panels"]
    base = next(p for p in panels if (p["cell"], p["group"]) == ("baseline", "same_wording"))
    assert [row["text"] for row in base["rows"] if row["kind"] == "end"] == ["gap +1.15"]
    lines = [row for row in base["rows"] if row["kind"] == "line"]
    assert len(lines) == 3 * 8
    assert all(row["low"] <= row["mean"] <= row["high"] and row["seeds"] == 3 for row in lines)


def test_the_short_answer_is_written_from_the_numbers(quickstart: tuple[Plan, Store]) -> None:
    points = {point.head: point for point in short_answer(Findings(*quickstart))}
    assert points["In one sentence"].text.startswith("Of 8 levels on 4 axes, 4 improved and none worsened")
    assert points["Helped"].items[0].startswith("Tuning LoRA lowered it by 0.115 [0.098, 0.132], p")
    assert any("only 2 of 3 trials finished" in item for item in points["Helped"].items)
    assert "equivalence p\u00a0=" in points["Equivalent"].items[0]
    assert "this test could not have seen a loss" in points["Equivalent"].text
    assert "U-shaped in 3 of 3 seeds" in points["Overfitting"].text
    assert points["Did not finish"].items == (
        "Tuning LoRA r=4 α=8: crashed, 1 trial.",
        "Tuning BitFit: unsupported, 3 trials.",
    )


def test_nothing_recorded_yet(tmp_path: Path) -> None:
    text = Reader(report(plan_of(tmp_path / "study"), Store(tmp_path / "none"))).text
    assert "Nothing to compare yet" in text
    assert "30 of 30 trials have no recorded outcome" in text


def test_nothing_finished(tmp_path: Path) -> None:
    plan, store = plan_of(tmp_path / "study"), Store(tmp_path / "results")
    ends = [
        Diverged(step=3, quantity="loss", value="nan", bound=1e4),
        OutOfMemory(phase="backward", requested_bytes=2**31, limit_bytes=2**30),
        Skipped(predicted_bytes=2**34, limit_bytes=2**33, dtype_policy="fp32"),
        Killed(signal=9),
        Crashed(error="E: <script>alert(1)</script>", where="x.py:1", log_tail=""),
    ]
    for job, end in zip(plan.jobs, ends * 6, strict=True):
        record(store, job, end)
    html = report(plan, store)
    reader = Reader(html)
    for words in (
        "loss was nan at step 3",
        "2.0 GiB of 1.0 GiB",
        "predicted 16.0 GiB of 8.0 GiB",
        "signal 9",
    ):
        assert words in reader.text
    assert "<script>alert" not in html
    assert scripts(html)[0].count("vegaEmbed") < 5, "no charts, no chart library"


@pytest.mark.parametrize("seeds", ["[7]", "[1, 2]"])
def test_few_seeds_give_means_and_no_invented_interval(tmp_path: Path, seeds: str) -> None:
    plan = plan_of(tmp_path / "study", vary="{neftune_noise_alpha: [0, 5]}", seeds=seeds)
    store = Store(tmp_path / "results")
    for job in plan.jobs:
        record(store, job)
    text = Reader(report(plan, store)).text
    assert not re.search(r"\bnan\b", text, flags=re.I)
    assert ("One pair only" in text) == (seeds == "[7]")


def test_half_the_trials_are_missing(tmp_path: Path) -> None:
    plan, store = plan_of(tmp_path / "study"), Store(tmp_path / "results")
    for job in plan.jobs[::2]:
        record(store, job, usual_outcome(job))
    text = Reader(report(plan, store)).text
    assert "15 of 30 trials have no recorded outcome" in text
    assert "conditional" in text


def test_unicode_and_markup_in_names_stay_text(tmp_path: Path) -> None:
    question = "'Ist α größer als 0 für <b>日本語</b> & \"x\"?'"
    plan = plan_of(tmp_path / "Stüdie 1", name="Prüfung <1> ü".replace("<1>", "1"), question=question)
    store = Store(tmp_path / "Ergebnisse ü")
    for job in plan.jobs[:3]:
        record(store, job)
    html = report(plan, store)
    assert "<b>日本語</b>" not in html
    assert 'Ist α größer als 0 für <b>日本語</b> & "x"?' in Reader(html).text


def test_the_chart_library_is_built_once(
    quickstart: tuple[Plan, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = report(*quickstart)
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda: pytest.fail("built twice"))
    assert report(*quickstart) == first


def test_no_sentence_in_the_sources_names_a_verdict_without_numbers(tmp_path: Path) -> None:
    plan, store = plan_of(tmp_path / "study", vary="{neftune_noise_alpha: [0, 5]}"), Store(tmp_path / "r")
    for job in plan.jobs:
        record(store, job)
    heads = {point.head for point in short_answer(Findings(plan, store))}
    assert not heads & {"Harmed", "Equivalent", "Did not finish"}


def test_a_control_tests_the_test_and_is_no_finding(tmp_path: Path) -> None:
    compare = ", controls: [{precision: {kind: fp8, scaling: none, compute: emulated}}]"
    plan = plan_of(tmp_path / "study", vary="{neftune_noise_alpha: [0, 5]}", compare=compare)
    store = Store(tmp_path / "results")
    for job in plan.jobs:
        harm = Effect(shift=1.0) if job.trial.precision.kind == "fp8" else effect_of(job)
        slow = replace(harm, speed=0.01) if harm.shift == 1 else harm
        record(store, job, readings=lambda j, e=slow: curve(j, e))
    findings = Findings(plan, store)
    assert findings.common_level is not None
    assert findings.common_level < 1
    points = {point.head: point for point in short_answer(findings)}
    assert points["In one sentence"].text.startswith("Of 1 level on 1 axis, 1 improved and none worsened")
    assert "planted on purpose was seen" in points["Control"].text
    assert "(control) raised it by" in points["Control"].items[0]
    families = {contrast.axis: contrast.family for contrast in findings.primary_contrasts}
    assert families == {"neftune_noise_alpha": "neftune_noise_alpha", "precision": "controls"}
    assert "control" not in json.dumps(forest(findings, Claims()))


def test_one_epoch_has_no_shape_of_overfitting_and_keeps_its_curve(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "study", vary="{neftune_noise_alpha: [0, 5]}")
    store = Store(tmp_path / "results")
    for job in plan.jobs:
        record(store, job, readings=lambda j: [r for r in curve(j, effect_of(j)) if r.epoch <= 1])
    findings = Findings(plan, store)
    assert "Overfitting" not in {point.head for point in short_answer(findings)}
    assert {row["epoch"] for panel in curve_panels(findings) for row in panel["rows"]} == {0.0, 1.0}
    assert "is U-shaped" not in Reader(report(plan, store)).text


def section_of(html: str, name: str) -> str:
    return Reader(re.findall(rf'<section id="{name}".*?</section>', html, flags=re.S)[0]).text


def test_what_varies_is_not_said_to_be_held_fixed(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path / "study", vary="{training.warmup_steps: [0, 5], data.loss_on: [completion, all]}"
    )
    store = Store(tmp_path / "results")
    record(store, plan.jobs[0])
    text = section_of(report(plan, store), "design")
    fixed = text.partition("Held fixed")[2].partition("Model")[0]
    assert "learning rate 0.002" in fixed
    assert "train examples 128" in fixed
    assert "warmup" not in fixed
    assert "groups same_wording and new_wording" in text


def test_one_learning_rate_for_two_ways_of_tuning_is_said(tmp_path: Path) -> None:
    said = "One learning rate, 0.002, serves every arm"
    for vary, expected in (("{tuning: [full, lora]}", True), ("{neftune_noise_alpha: [0, 5]}", False)):
        plan = plan_of(tmp_path / vary[1:4], vary=vary)
        assert (said in Reader(report(plan, Store(tmp_path / "none"))).text) == expected


def test_a_price_is_a_cost_in_the_report(tmp_path: Path) -> None:
    plan, store = (
        plan_of(tmp_path / "study", vary="{neftune_noise_alpha: [0, 5]}"),
        Store(tmp_path / "results"),
    )
    for job in plan.jobs:
        record(store, job)
    assert "device hours in 6 trials, scoring left out" in section_of(report(plan, store), "design")
    priced = plan_of(
        tmp_path / "study", vary="{neftune_noise_alpha: [0, 5]}\nresources: {price_per_hour: 1000}"
    )
    assert "at 1000 an hour: 7" in section_of(report(priced, store), "design")


def test_without_claims_nothing_is_said_of_documents(quickstart: tuple[Plan, Store]) -> None:
    text = section_of(report(*quickstart), "documents")
    assert "ocument" not in text.replace("Beside the documents", "")
    assert "AlpacaEval" not in text


def test_a_share_of_the_baseline_is_one_of_the_cells_it_was_paired_with(tmp_path: Path) -> None:
    """LoRA's loss is half of that of full fine-tuning; fp8 adds a tenth to each."""
    vary = "{precision: [fp32, {kind: fp8, compute: emulated}], tuning: [full, lora]}"
    plan, store = plan_of(tmp_path / "study", vary=vary, design="grid"), Store(tmp_path / "results")
    for job in plan.jobs:
        size = (0.5 if job.trial.tuning.kind == "lora" else 1.0) * (
            1.1 if job.trial.precision.kind == "fp8" else 1.0
        )
        flat = [r.model_copy(update={"loss": size}) for r in curve(job, effect_of(job))]
        record(store, job, readings=lambda j, found=flat: found)
    sheet = precision(Findings(plan, store), Claims())
    assert sheet is not None
    assert [row["relative"].mean for row in sheet.rows[1:]] == [pytest.approx(10.0)]


def test_weights_out_of_a_gguf_file_are_said_to_be(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "study", vary="{neftune_noise_alpha: [0, 5]}")
    assert "dequantised" not in report(plan, Store(tmp_path / "none"))
    jobs = tuple(
        job.model_copy(
            update={"trial": job.trial.model_copy(update={"model": PathModel(path=Path("m/w.gguf"))})}
        )
        for job in plan.jobs
    )
    assert "w.gguf, a GGUF file that was dequantised" in Reader(
        report(replace(plan, jobs=jobs), Store(tmp_path / "none"))
    ).text.replace(" ,", ",")


def test_speed_on_another_machine_is_no_ratio(tmp_path: Path) -> None:
    plan, store = plan_of(tmp_path / "study", vary="{precision: [fp32, bf16]}"), Store(tmp_path / "results")
    for job in plan.jobs:
        record(store, job)
    sheet = precision(Findings(plan, store), Claims())
    assert sheet is not None
    assert (sheet.rows[1]["speed"], sheet.rows[1]["memory"]) == ("1.00x", "not measured")
    for job in plan.jobs:
        if job.trial.precision.kind == "bf16":
            path = store.folder(job.trial_id) / "result.json"
            path.write_text(path.read_text().replace("Test CPU", "Other CPU"))
    sheet = precision(Findings(plan, store), Claims())
    assert sheet is not None
    assert sheet.rows[1]["speed"] == sheet.rows[1]["memory"] == "other machine"
    assert "never compared across classes of machine" in sheet.note
