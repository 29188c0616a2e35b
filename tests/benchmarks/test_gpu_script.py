"""The prepared GPU script runs every part small on a CPU, says what it could not run, and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

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
    assert "out of memory" in missing
    assert missing <= {"out of memory", "native against emulated fp8"}


def test_a_step_has_its_phases_and_its_tokens(measured: Path) -> None:
    found = lines(measured)
    line = found["bf16 lora checkpointed"]
    assert all(line[f"seconds_{phase}"] > 0 for phase in ("forward", "backward", "optimizer"))
    assert line["tokens"] == 32 and line["device"] == "cpu"
    split = [found[f"8 rows in {steps} micro-batches"] for steps in (1, 4, 8)]
    assert [one["tokens"] for one in split] == [8 * 32] * 3  # the same batch, however it is split
    assert found["bf16 full"]["trained_parameters"] > line["trained_parameters"]


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize(
    ("precision", "dtypes"),
    [
        ("fp32", {"float32"}),
        ("tf32", {"float32"}),
        ("bf16", {"bfloat16"}),
        ("fp16", {"float16"}),
        ("fp8", {"float8_e4m3fn", "float8_e5m2 x float8_e4m3fn", "bfloat16"}),
    ],
)
def test_no_format_is_measured_under_the_name_of_another(
    measured: Path, precision: str, tuning: str, dtypes: set[str]
) -> None:
    line = lines(measured)[f"{precision} {tuning}"]
    assert set(line["products_of_first_step"]) == dtypes
    assert ("tf32" in line["multiplied_by"]) == (precision == "tf32")


def test_native_and_emulated_end_at_nearly_the_same_loss(measured: Path) -> None:
    for part, line in lines(measured).items():
        if part.startswith("native against emulated") and line["outcome"] == "finished":
            assert 0 < abs(line["loss_difference"]) < 0.02 * line["loss_native"]


def test_eight_bit_layers_need_no_more_than_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are those of two and three significand bits; 30 tokens are no multiple of 16."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import scaled

    monkeypatch.setattr(scaled, "find_spec", lambda name: None)
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 32)), torch.randn(2, 15, 64, requires_grad=True)
    given = torch.randn(2, 15, 32)

    def run() -> list[torch.Tensor]:
        output = model(x)
        return [output, *torch.autograd.grad(output, [x, *model.parameters()], given)]

    exact = run()
    assert scaled.eight_bit_layers(model) == "torch._scaled_mm"
    for found, wanted, least, most in zip(
        run(), exact, (1e-3, 1e-2, 1e-2, 0), (0.06, 0.1, 0.1, 0), strict=True
    ):
        assert least <= (found - wanted).norm() / wanted.norm() <= most


def test_a_part_that_takes_too_long_is_stopped_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import measure as script
    from parts import Part

    rig = script.Rig("cpu", {}, 1, 1)
    monkeypatch.setattr(script, "_special", lambda part, rig: time.sleep(20))
    line = script._measured(Part("slow"), rig, 0.2)
    assert (line["outcome"], line["reason"]) == ("not run", "stopped after 0.2 s")
    monkeypatch.setattr(script, "_special", lambda part, rig: {"tokens": 1})
    assert script._measured(Part("fast"), rig, 0.2)["outcome"] == "finished"
    time.sleep(0.3)  # the alarm of a part that has ended is off


def test_nothing_is_measured_twice_and_nothing_begun_without_budget(measured: Path, tmp_path: Path) -> None:
    before = measured.read_bytes()
    assert measure("--tiny", "--to", str(measured)).returncode == 0
    assert measured.read_bytes() == before
    spent = measure("--tiny", "--budget-seconds", "-1", "--to", str(tmp_path / "none.jsonl"))
    assert "the budget of -1 s is spent" in spent.stdout
    assert not (tmp_path / "none.jsonl").exists()
