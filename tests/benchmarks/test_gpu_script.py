"""The prepared GPU script runs every part small on a CPU, says what it could not run, and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "measure.py"


def measure(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("gpu") / "results.jsonl"
    done = measure("--tiny", "--to", str(to))
    assert done.returncode == 0, done.stdout + done.stderr
    return to


def lines(path: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len({line["part"] for line in found}) == len(found)
    return {line["part"]: line for line in found}


def test_every_part_ends_and_what_was_not_run_says_why(measured: Path) -> None:
    found = lines(measured)
    assert len(found) == 31
    for part, line in found.items():
        assert line["outcome"] in ("finished", "not run"), (part, line)
        assert line["outcome"] == "finished" or line["reason"]
    missing = {part for part, line in found.items() if line["outcome"] == "not run"}
    assert {"native against emulated fp8", "out of memory"} <= missing
    assert all("fp8" in part or part == "out of memory" for part in missing)


def test_a_step_has_its_phases_and_its_tokens(measured: Path) -> None:
    found = lines(measured)
    line = found["bf16 lora checkpointed"]
    assert all(line[f"seconds_{phase}"] > 0 for phase in ("forward", "backward", "optimizer"))
    assert line["tokens"] == 32 and line["device"] == "cpu"
    split = [found[f"8 rows in {steps} micro-batches"] for steps in (1, 4, 8)]
    assert [one["tokens"] for one in split] == [8 * 32] * 3  # the same batch, however it is split
    assert found["bf16 full"]["trained_parameters"] > line["trained_parameters"]


def test_native_and_emulated_bf16_end_at_nearly_the_same_loss(measured: Path) -> None:
    line = lines(measured)["native against emulated bf16"]
    assert 0 < abs(line["loss_difference"]) < 0.02 * line["loss_native"]


def test_nothing_is_measured_twice_and_nothing_begun_without_budget(measured: Path, tmp_path: Path) -> None:
    before = measured.read_bytes()
    assert measure("--tiny", "--to", str(measured)).returncode == 0
    assert measured.read_bytes() == before
    spent = measure("--tiny", "--budget-seconds", "-1", "--to", str(tmp_path / "none.jsonl"))
    assert "the budget of -1 s is spent" in spent.stdout
    assert not (tmp_path / "none.jsonl").exists()
