"""Results in peft's schema: letters as the binomial errors demand, and errors that name file and key."""

from __future__ import annotations

import json
from itertools import combinations
from math import erfc, hypot, sqrt
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paribus import cli
from paribus.compare.peft_results import read_folder
from paribus.errors import ParibusError

ITEMS = 1319
RIGHT = (20, 300, 310, 480, 520, 530, 560, 575, 590, 600, 601, 610, 625, 636, 640, 655, 670, 690, 720, 725)
"""Of 1,319 problems, how many each of twenty arms has right: two far below, a crowd, and two at the top."""


def run_of(name: str, right: int, **given: Any) -> dict[str, Any]:
    """Write one run as method_comparison does, with what an importer reads and some of what it does not."""
    return {
        "run_info": {
            "created_at": "2025-06-19T19:15:35+00:00", "total_time": 1993.5, "experiment_name": name,
            "peft_branch": "main", "error_msg": "",
            "train_config": {"model_id": "meta-llama/Llama-3.2-3B", "max_steps": 5000, "seed": 0}
            | given.get("config", {}),
            "peft_config": {"task_type": "CAUSAL_LM", "peft_type": "LORA", "r": 32},
        },
        "train_info": {
            "train_time": 1796.2, "file_size": 36715216, "status": given.get("status", "success"),
            "metrics": [
                {"step": 250, "valid accuracy": 0.34, "train loss": 0.98, "train samples": 1000},
                {"step": 5000, "test accuracy": right / ITEMS, "train loss": 0.6, "train samples": 20000}
                | given.get("last", {}),
            ],
        },
        "meta_info": {"dataset_info": given.get("data", {"gsm8k": {"sha": "e53f"}}), "package_info": {}},
    }  # fmt: skip


def folder_of(place: Path, runs: list[dict[str, Any]]) -> Path:
    place.mkdir(exist_ok=True)
    for number, run in enumerate(runs):
        (place / f"arm{number:02d}.json").write_text(json.dumps(run), encoding="utf-8")
    return place


@pytest.fixture
def twenty(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "results", [run_of(f"lora/{right}", right) for right in RIGHT])


def told_apart() -> set[tuple[int, int]]:
    """Work out by hand which of the 190 pairs their binomial errors part, with Holm over all of them."""
    ps = []
    for a, b in combinations(RIGHT, 2):
        error = hypot(*(sqrt(k / ITEMS * (1 - k / ITEMS) / ITEMS) for k in (a, b)))
        ps.append((erfc(abs(a - b) / ITEMS / error / sqrt(2)), (a, b)))
    found, left = set(), len(ps)
    for p, pair in sorted(ps):
        if p * left >= 0.05:
            break
        found.add(pair)
        left -= 1
    return found


def test_arms_share_a_letter_exactly_where_binomial_errors_do_not_part_them(twenty: Path) -> None:
    document = read_folder(twenty).to_json()
    letters = {round(arm["score"] * ITEMS): set(arm["ties"]) for arm in document["arms"]}
    apart = told_apart()
    assert 60 < len(apart) < 150  # both answers occur often
    for pair in combinations(RIGHT, 2):
        assert bool(letters[pair[0]] & letters[pair[1]]) == (pair not in apart), pair
    assert [arm["score"] for arm in document["arms"]] == sorted((k / ITEMS for k in RIGHT), reverse=True)
    assert letters[725] == {"a"} and letters[20] & set().union(*(letters[k] for k in RIGHT[1:])) == set()
    assert len(document["pairs"]) == 190
    assert document["warnings"] == []


def test_a_score_stands_with_its_binomial_error(tmp_path: Path) -> None:
    """636 of 1,319, the score of LoRA of rank 32: 48.2 % with an error of 1.4 points."""
    folder = folder_of(tmp_path / "r", [run_of("lora/r32", 636), run_of("lora/r64", 640)])
    arm = next(arm for arm in read_folder(folder).to_json()["arms"] if arm["name"] == "lora/r32")
    assert (arm["items"], arm["error"]) == (1319, pytest.approx(0.013758, abs=1e-6))
    assert arm["low"] < arm["score"] - arm["error"] < arm["score"] < arm["high"]


def test_a_run_that_failed_is_listed_and_joins_no_group(tmp_path: Path) -> None:
    failed = run_of("lora/b", 0, status="failed")
    failed["train_info"]["metrics"] = []
    folder = folder_of(tmp_path / "r", [run_of("lora/a", 600), failed, run_of("lora/c", 590)])
    document = read_folder(folder).to_json()
    assert document["arms"][-1] == {
        "name": "lora/b", "file": "arm01.json", "method": "LORA", "status": "failed",
    }  # fmt: skip
    assert document["groups"] == {"a": ["lora/a", "lora/c"]}


def test_items_come_from_the_file_then_from_the_option_then_from_gsm8k(tmp_path: Path) -> None:
    said = run_of("said", 0, last={"test accuracy": 0.5, "test samples": 500})
    other = run_of("other", 0, last={"test accuracy": 0.5}, data={"mmlu": {}})
    folder = folder_of(tmp_path / "r", [said, other])
    with pytest.raises(ParibusError, match=r"arm01.json.*how many items") as caught:
        read_folder(folder)
    assert caught.value.way_out is not None and "--items" in caught.value.way_out
    assert {run.name: run.items for run in read_folder(folder, 800).runs} == {"said": 500, "other": 800}


def test_what_arms_do_not_share_is_said(tmp_path: Path) -> None:
    runs = [run_of("a", 600), run_of("b", 610), run_of("c", 620, config={"seed": 7})]
    runs += [run_of("d", 0, last={"test accuracy": 0.4800001})]
    warnings = read_folder(folder_of(tmp_path / "r", runs)).warnings
    assert warnings[0] == "the arms differ in seed: 0 in 3 arms; 7 in c"
    assert "no whole number of 1,319 items" in warnings[1] and len(warnings) == 2


def test_two_files_of_one_name_are_named_by_their_files(tmp_path: Path) -> None:
    found = read_folder(folder_of(tmp_path / "r", [run_of("same", 600), run_of("same", 610)]))
    assert {run.name for run in found.runs} == {"arm00", "arm01"}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: run["train_info"]["metrics"][-1].__setitem__("test acuracy", 1), None),
        (lambda run: run["train_info"]["metrics"][-1].pop("test accuracy"), "has no 'test accuracy'"),
        (lambda run: run.pop("train_info"), "the file has no 'train_info'"),
        (lambda run: run["train_info"].__setitem__("metrics", []), "metrics has no last entry"),
        (lambda run: run["train_info"].__setitem__("metrics", "none"), "metrics has no last entry"),
        (lambda run: run["run_info"].__setitem__("experiment_name", 3), "must be str, not 3"),
        (lambda run: run["train_info"]["metrics"][-1].update({"test accuracy": 48.2}), "between 0 and 1"),
        (lambda run: run["train_info"]["metrics"][-1].update({"test accuracy": True}), "not True"),
        (lambda run: run["train_info"]["metrics"][-1].update({"test samples": 0}), "at least 1"),
    ],
)
def test_a_malformed_file_is_named_with_its_key(tmp_path: Path, spoil: Any, said: str | None) -> None:
    run = run_of("a", 600)
    spoil(run)
    folder = folder_of(tmp_path / "r", [run_of("b", 610), run])
    if said is None:
        assert len(read_folder(folder).runs) == 2  # a key more is no fault
        return
    with pytest.raises(ParibusError) as caught:
        read_folder(folder)
    assert "arm01.json" in str(caught.value) and said in str(caught.value)


def test_a_misspelt_key_names_the_nearest(tmp_path: Path) -> None:
    run = run_of("a", 600)
    run["train_info"]["metrics"][-1]["test acuracy"] = run["train_info"]["metrics"][-1].pop("test accuracy")
    with pytest.raises(ParibusError, match="Did you mean 'test acuracy'"):
        read_folder(folder_of(tmp_path / "r", [run]))


def test_a_folder_without_runs_or_without_json_is_said(tmp_path: Path) -> None:
    with pytest.raises(ParibusError, match="no such folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(ParibusError, match=r"no \*.json"):
        read_folder(tmp_path)
    (tmp_path / "broken.json").write_text('{\n"run_info": }', encoding="utf-8")
    with pytest.raises(ParibusError, match=r"broken.json:2: this is no JSON"):
        read_folder(tmp_path)


def test_the_command_prints_a_table_and_a_document(twenty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = CliRunner().invoke(cli.app, ["import", "peft", str(twenty), "--json"])
    assert shown.exit_code == 0
    assert len(json.loads(shown.stdout)["arms"]) == 20
