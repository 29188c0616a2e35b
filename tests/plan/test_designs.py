"""Designs: which cells a study asks for, in which order, and which trials they share."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from studies import QUICKSTART, FixedContents, plan, quickstart, short

from paribus.errors import StudyError
from paribus.machine import Machine
from paribus.plan.content import ModelContent
from paribus.plan.design import Plan, expand
from paribus.plan.preflight import obstacles
from paribus.plan.reading import parse_study
from paribus.sources.blocks import ModelBlock, PathModel
from paribus.techniques import Lora, Noise


def places(planned: Plan) -> list[tuple[str, ...]]:
    return [tuple(cell.coordinates.values()) for cell in planned.cells]


def test_the_quickstart_has_ten_cells_over_four_axes_and_a_control() -> None:
    planned = plan(quickstart())
    assert len(planned.cells) == 11
    assert len(planned.jobs) == 33
    assert [cell.levels["neftune_noise_alpha"].alpha for cell in planned.cells if cell.is_control] == [40]
    assert planned.axes == ("gradient_accumulation_steps", "neftune_noise_alpha", "precision", "tuning")
    assert [cell.factor for cell in planned.cells] == [
        None,
        "gradient_accumulation_steps",
        *["neftune_noise_alpha"] * 2,
        *["precision"] * 3,
        *["tuning"] * 3,
        "neftune_noise_alpha",
    ]
    assert places(planned)[0] == ("1", "0", "fp32", "full")
    assert planned.baseline is planned.cells[0]


def test_repeats_come_seed_by_seed_and_share_a_group() -> None:
    planned = plan(quickstart())
    assert [job.trial.seed for job in planned.jobs] == [0] * 11 + [1] * 11 + [2] * 11
    for cell in planned.cells:
        assert {planned.job(trial_id).group for trial_id in cell.trials.values()} == {cell.group}
        assert {seed: planned.job(t).trial.seed for seed, t in cell.trials.items()} == {0: 0, 1: 1, 2: 2}


def test_a_grid_is_every_combination_once_in_the_order_of_the_study() -> None:
    planned = plan(short("vary:", "  precision: [fp32, bf16]", "  neftune_noise_alpha: [0, 5, 10]"))
    assert places(planned) == [(p, n) for p in ("fp32", "bf16") for n in ("0", "5", "10")]
    assert len({job.trial_id for job in planned.jobs}) == 12


def test_a_word_a_number_and_a_block_are_one_level_and_one_trial() -> None:
    lora = "{kind: lora, r: 8, lora_alpha: 16, target_modules: all-linear}"
    planned = plan(
        short("vary:", f"  tuning: [full, lora, {lora}]", "  neftune_noise_alpha: [0, 5, 5.0, {alpha: 5}]")
    )
    assert places(planned) == [("full", "0"), ("full", "5"), ("lora", "0"), ("lora", "5")]


def test_identical_settings_in_two_cells_are_one_trial() -> None:
    """The same content under two names, here two load paths that hold the same bytes, is run once."""

    class SameBytes(FixedContents):
        def model(self, block: Any) -> Any:
            return super().model(block.model_copy(update={"path": "one"}))

    text = short("vary:", "  model: [{source: path, path: a}, {source: path, path: b}]")
    text = text.replace("model: {source: embedded}\n", "")
    planned = expand(parse_study(text), SameBytes())
    assert places(planned) == [("path path=a",), ("path path=b",)]
    assert len(planned.jobs) == 2
    assert planned.cells[0].trials == planned.cells[1].trials


def test_a_condition_drops_an_axis_where_it_does_not_apply() -> None:
    planned = plan(
        short("vary:", "  tuning: [full, lora]", "  tuning.r: {values: [4, 16], when: {tuning: lora}}")
    )
    assert places(planned) == [("full", "-"), ("lora", "4"), ("lora", "16")]
    tunings = [planned.job(cell.trials[0]).trial.tuning for cell in planned.cells]
    assert [t.r for t in tunings if isinstance(t, Lora)] == [4, 16]
    assert "tuning.r" not in planned.cells[0].levels


def test_a_condition_on_a_named_axis_leaves_its_base_elsewhere() -> None:
    planned = plan(
        short(
            "vary:", "  neftune_noise_alpha: {values: [0, 5], when: {tuning: lora}}", "  tuning: [full, lora]"
        )
    )
    assert places(planned) == [("0", "full"), ("0", "lora"), ("5", "lora")]


def test_a_condition_matches_a_kind_or_a_setting() -> None:
    lines = ["vary:", "  tuning: [full, lora, {kind: lora, r: 4}]", "exclude:"]
    by_kind = plan(short(*lines, '  - {tuning: lora, reason: "too slow"}'))
    assert places(by_kind) == [("full",)]
    assert [str(cell) for cell in by_kind.excluded] == ["tuning lora: too slow", "tuning lora r=4: too slow"]
    by_setting = plan(short(*lines, '  - {tuning: {kind: lora, r: 4}, reason: "too small"}'))
    assert places(by_setting) == [("full",), ("lora",)]


def test_an_axis_crosses_others_within_its_factor() -> None:
    planned = plan(
        short(
            "design: one_factor_at_a_time",
            "vary:",
            "  neftune_noise_alpha: {values: [0, 5], also: {tuning: [full, lora]}}",
            "  precision: [fp32, {kind: bf16, compute: emulated}]",
        )
    )
    assert [place[:1] + place[2:] for place in places(planned)] == [
        ("0", "full"),
        ("0", "lora"),
        ("5", "full"),
        ("5", "lora"),
        ("0", "full"),
    ]
    factors = [None, "tuning", "neftune_noise_alpha", "neftune_noise_alpha", "precision"]
    assert [cell.factor for cell in planned.cells] == factors


def test_a_field_of_a_technique_is_a_factor_under_that_technique() -> None:
    planned = plan(
        short(
            "design: one_factor_at_a_time",
            "vary:",
            "  tuning: [full, lora]",
            "  tuning.r: {values: [4, 16], also: {tuning: lora}}",
        )
    )
    assert places(planned) == [("full", "-"), ("lora", "4"), ("lora", "16")]


def test_leave_one_out_is_the_base_everything_and_everything_but_one() -> None:
    planned = plan(
        short(
            "design: leave_one_out",
            "vary:",
            "  tuning: [full, lora]",
            "  neftune_noise_alpha: [0, 5]",
            "  gradient_accumulation_steps: [1, 4]",
        )
    )
    assert places(planned) == [
        ("full", "0", "1"),
        ("lora", "5", "4"),
        ("full", "5", "4"),
        ("lora", "0", "4"),
        ("lora", "5", "1"),
    ]


def test_leave_one_out_says_which_levels_it_does_not_use() -> None:
    planned = plan(short("design: leave_one_out", "vary:", "  neftune_noise_alpha: [0, 5, 10]"))
    assert places(planned) == [("0",), ("5",)]
    assert [str(cell) for cell in planned.excluded] == [
        "neftune_noise_alpha 10: leave_one_out takes each axis's first level beside the base"
    ]


def test_included_cells_and_controls_are_planned_after_the_design() -> None:
    planned = plan(
        short(
            "design: one_factor_at_a_time",
            "vary: {neftune_noise_alpha: [0, 5], tuning: [full, lora]}",
            "include: [{neftune_noise_alpha: 5, tuning: lora}, {tuning: lora}]",
            "compare:",
            "  controls:",
            "    - {precision: {kind: fp8, scaling: none, compute: emulated}}",
            "    - {neftune_noise_alpha: 5}",
        )
    )
    assert [place[:2] for place in places(planned)] == [
        ("0", "full"),
        ("5", "full"),
        ("0", "lora"),
        ("5", "lora"),
        ("0", "full"),
    ]
    assert [cell.is_control for cell in planned.cells] == [False, True, False, False, True]
    assert planned.axes == ("neftune_noise_alpha", "tuning", "precision")


def test_an_included_cell_may_take_some_of_the_seeds() -> None:
    planned = plan(
        short(
            "vary: {neftune_noise_alpha: [0, 5]}",
            "include: [{gradient_accumulation_steps: 4, seeds: [1]}]",
        ).replace("seeds: [0]", "seeds: [0, 1]")
    )
    assert [list(cell.trials) for cell in planned.cells] == [[0, 1], [0, 1], [1]]
    assert len(planned.jobs) == 5


def test_the_baseline_is_the_base_cell_unless_compare_names_another() -> None:
    text = short("vary: {tuning: [full, lora]}", "tuning: lora")
    assert plan(text).baseline.coordinates == {"tuning": "lora"}
    other = plan(text + "compare: {baseline: {tuning: full}}\n")
    assert other.baseline.coordinates == {"tuning": "full"}
    assert {job.trial_id for job in other.jobs} == {job.trial_id for job in plan(text).jobs}


def test_any_setting_is_varied_by_its_dotted_name_and_its_first_value_is_the_base() -> None:
    planned = plan(
        short(
            "design: one_factor_at_a_time",
            "vary:",
            "  training.learning_rate: [1e-3, 2e-3]",
            "  data.train_examples: [64, 128]",
            "  training.effective_batch_size: [16, 32]",
        )
    )
    assert places(planned) == [
        ("0.001", "64", "16"),
        ("0.002", "64", "16"),
        ("0.001", "128", "16"),
        ("0.001", "64", "32"),
    ]
    trial = planned.job(planned.cells[2].trials[1]).trial
    assert (trial.training.learning_rate, trial.data.train_examples, trial.seed) == (1e-3, 128, 1)


def test_a_setting_is_fixed_by_its_dotted_name() -> None:
    dotted = plan(short("training.learning_rate: 1e-3"))
    nested = plan(short().replace("{epochs: 2", "{learning_rate: 1e-3, epochs: 2"))
    assert [job.trial_id for job in dotted.jobs] == [job.trial_id for job in nested.jobs]


def test_the_order_in_which_settings_are_varied_does_not_matter() -> None:
    fields_first = plan(
        short(
            "vary:",
            "  tuning.r: {values: [4, 16], when: {tuning: lora}}",
            "  data.train_examples: [64, 32]",
            "  tuning: [full, lora]",
            "  data: [{source: embedded}, {source: embedded, loss_on: all}]",
        ).replace("data: {source: embedded}\n", "", 1)
    )
    assert len(fields_first.cells) == 3 * 2 * 2
    assert fields_first.baseline.coordinates == {
        "tuning.r": "-",
        "data.train_examples": "64",
        "tuning": "full",
        "data": "embedded",
    }
    assert fields_first.study.compare.metric == "test.same_wording.loss"


def test_a_field_is_varied_under_the_base_technique_alone() -> None:
    planned = plan(short("tuning: lora", "vary: {tuning.r: [4, 8, 16]}"))
    assert places(planned) == [("4",), ("8",), ("16",)]
    without = short("vary: {tuning.r: [4, 8]}")
    with pytest.raises(StudyError, match="tuning is full, which has no r"):
        plan(without)


def test_a_study_that_varies_nothing_is_one_cell() -> None:
    planned = plan(short())
    assert [cell.coordinates for cell in planned.cells] == [{}]
    assert planned.baseline is planned.cells[0] and len(planned.jobs) == 2


def test_paths_keep_the_form_in_which_they_are_written() -> None:
    decomposed = unicodedata.normalize("NFD", "Übung mit Leerzeichen")
    text = short().replace("{source: embedded}", f"{{source: path, path: {decomposed}}}", 1)
    model = parse_study(text).model
    assert isinstance(model, PathModel) and str(model.path) == decomposed


def test_two_levels_never_share_a_name() -> None:
    planned = plan(short("vary: {neftune_noise_alpha: [0, 5.00000001, 5.00000002]}"))
    assert len({place for (place,) in places(planned)}) == 3


def test_a_factor_that_never_applies_is_an_error_under_every_cell() -> None:
    text = short(
        "design: leave_one_out",
        "vary:",
        "  tuning: [full, lora]",
        "  neftune_noise_alpha: {values: [0, 5], when: {tuning: full}}",
    )
    with pytest.raises(StudyError, match="would ever run"):
        plan(text)


def test_contents_are_read_once_a_block_however_many_trials() -> None:
    from paribus.plan.content import Found

    seeds = ", ".join(map(str, range(20)))
    text = short("vary: {neftune_noise_alpha: [0, 1, 2, 3, 4]}").replace("[0, 1]}", f"[{seeds}]}}", 1)
    study = parse_study(text)
    found = Found(study)
    planned = expand(study, found)
    assert len(planned.jobs) == 100
    assert sorted(key[0] for key in found._kept) == ["data", "heldout", "model", "template"]


def test_five_thousand_cells_are_planned() -> None:
    rates = ", ".join(f"{n}e-4" for n in range(1, 51))
    alphas = ", ".join(map(str, range(50)))
    planned = plan(
        short(
            "vary:",
            f"  training.learning_rate: [{rates}]",
            f"  neftune_noise_alpha: [{alphas}]",
            "  tuning: [full, lora]",
        )
    )
    assert len(planned.cells) == 5000
    assert len({job.trial_id for job in planned.jobs}) == 10_000


def test_a_plan_as_json_lists_every_trial_with_documented_keys() -> None:
    document = plan(quickstart()).to_json()
    assert list(document) == [
        "paribus",
        "study",
        "question",
        "design",
        "axes",
        "seeds",
        "least_seeds",
        "least_trials",
        "baseline",
        "cells",
        "trials",
        "excluded",
    ]
    first = document["trials"][0]
    assert list(first) == ["id", "group", "seed", "settings", "content", "cells", "unsupported"]
    assert len(document["trials"]) == 33
    assert first["settings"]["training"]["learning_rate"] == 2e-3
    assert first["cells"] == [document["baseline"]]
    assert document == plan(quickstart()).to_json()


def test_the_four_axes_are_a_full_grid_and_a_control_that_all_train() -> None:
    text = QUICKSTART.parents[1].joinpath("four_axes", "study.yaml").read_text(encoding="utf-8")
    planned = plan(text)
    assert len(planned.cells) == 2 * 3 * 3 * 2 + 1
    controls = [cell.levels["neftune_noise_alpha"] for cell in planned.cells if cell.is_control]
    assert controls == [Noise(alpha=40)]
    assert obstacles(planned, Machine(name="a processor", memory_bytes=2**33, cores=2)) == {}
    base = plan(quickstart()).baseline.trials
    assert planned.baseline.trials == base


def test_a_package_is_planned_with_the_file_its_weights_are_in() -> None:
    class Packaged(FixedContents):
        def model(self, block: ModelBlock) -> ModelContent:
            return replace(super().model(block), gguf_file="w.gguf")

    text = short().replace("{source: embedded}", "{source: package, package: weights_of_it}", 1)
    assert "package: weights_of_it" in text
    named, bare = (expand(parse_study(t), c) for t, c in (
        (text.replace("weights_of_it", "weights_of_it, gguf_file: w.gguf"), Packaged()), (text, Packaged()),
    ))  # fmt: skip
    assert getattr(bare.jobs[0].trial.model, "gguf_file", None) == "w.gguf"
    assert bare.jobs[0].trial.model == named.jobs[0].trial.model


def test_checkpoints_reach_every_job_and_no_id() -> None:
    plain, saving = plan(short()), plan(short("resources: {checkpoint_every: 100}"))
    assert {job.checkpoint_every for job in plain.jobs} == {None}
    assert {job.checkpoint_every for job in saving.jobs} == {100}
    assert [job.trial_id for job in plain.jobs] == [job.trial_id for job in saving.jobs]
