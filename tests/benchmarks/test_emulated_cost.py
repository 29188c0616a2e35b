"""Emulated 8-bit training is torchao's to the last bits, and what it costs is written down level by level."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parents[2] / "benchmarks" / "emulation"
sys.path.insert(0, str(HERE))

import against_torchao  # noqa: E402
import cost  # noqa: E402

RECORD = json.loads((HERE / "torchao.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("recipe", against_torchao.RECIPES)
def test_loss_and_gradients_are_those_that_torchao_gave(recipe: str) -> None:
    """The numbers were made by torchao's Float8Linear with `emulate=True`; seven digits of each are kept."""
    found = against_torchao.ours(against_torchao.Small(), recipe)
    reference = RECORD["reference"][recipe]
    assert found.keys() == reference.keys()
    for name, values in reference.items():
        expected = torch.tensor(values).view(found[name].shape)
        assert float((found[name] - expected).norm() / expected.norm()) < 2e-6, name


def test_another_recipe_is_far_from_those_numbers() -> None:
    """The tolerance tells recipes apart: gradients in another format, or rows for tensors, are far off."""
    for recipe, other in (("tensorwise", "all_e4m3"), ("rowwise_with_gw_hp", "rowwise")):
        found = against_torchao.ours(against_torchao.Small(), other)
        expected = torch.tensor(RECORD["reference"][recipe]["down.weight"]).view(16, 32)
        assert float((found["down.weight"] - expected).norm() / expected.norm()) > 1e-2


def test_where_scales_are_powers_of_two_not_a_bit_differs() -> None:
    apart = {(row["model"], row["recipe"]): (row["loss"], row["gradients"]) for row in RECORD["rows"]}
    assert len(apart) == 2 * len(against_torchao.RECIPES)
    for (model, recipe), (loss, gradients) in apart.items():
        if recipe != "tensorwise":
            assert (loss, gradients) == (0, 0), (model, recipe)
    assert apart["two linear layers", "tensorwise"][1] < 1e-6


def test_every_level_has_a_measured_cost_and_the_limited_ones_keep_it() -> None:
    """A recorded figure is held against the limit, no clock of this machine."""
    rows = {row["level"]: row for row in json.loads((HERE / "results.json").read_text("utf-8"))["rows"]}
    assert set(rows) == set(cost.LEVELS)
    assert set(cost.LIMITED) <= set(rows)
    for name in cost.LIMITED:
        assert rows[name]["trial"] < rows[name]["limit"] == cost.LIMIT
    page = (HERE.parent / "README.md").read_text(encoding="utf-8")
    for name, row in rows.items():
        assert f"| {name} | {row['trial']:.2f} |" in page


def test_the_cost_of_one_level_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The script runs, on one level, one round and one epoch."""
    from paribus import Study, expand

    base = next(job for job in expand(Study.read(cost.STUDY)).jobs if job.trial.precision.kind == "fp32")
    seconds = cost.rounds(base, {"bf16": cost.LEVELS["bf16"]}, 1, 1)
    row = cost.row("bf16", seconds)
    assert row["trial"] > 0
    assert row["limit"] == 2.5
