"""What a study says wrongly of a benchmark, or does not have, is said with its place and a way out."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import pytest
from huggingface_hub import constants

from paribus.errors import ParibusError
from paribus.plan.scoring import Benchmark
from paribus.score import benchmarks, lm_eval_calls, lm_eval_tasks

TASKS = Path(lm_eval.__file__).parent / "tasks"
GSM8K = TASKS / "gsm8k" / "gsm8k.yaml"
QUESTIONS = [{"question": f"{number}?", "answer": f"#### {number}"} for number in range(4)]
OWN = """
task: own
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: [a, b]
doc_to_target: label
metric_list: [{metric: acc}]
"""


def put(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def said(base: Path, **setting: Any) -> str:
    """Return what checking a benchmark raises."""
    with pytest.raises(ParibusError) as raised:
        benchmarks.check(Benchmark(name="b", **setting), base)
    return str(raised.value)


def own(base: Path, text: str = OWN, *rows: dict[str, Any]) -> dict[str, Any]:
    (base / "own.yaml").write_text(text)
    put(base / "test.jsonl", *rows)
    return {"file": Path("own.yaml"), "data": "test.jsonl"}


def test_a_task_that_lm_eval_does_not_have(tmp_path: Path) -> None:
    message = said(tmp_path, task="gsm8kk")
    assert "lm-eval has no task 'gsm8kk'" in message
    assert "Did you mean 'gsm8k'" in message
    assert len(message) < 400


@pytest.mark.parametrize("setting", [{}, {"task": "gsm8k", "file": Path("own.yaml")}])
def test_a_benchmark_names_one_task(tmp_path: Path, setting: dict[str, Any]) -> None:
    assert "Name a task of lm-eval" in said(tmp_path, **setting)


def test_files_that_are_no_task(tmp_path: Path) -> None:
    assert "there is no task file" in said(tmp_path, file=Path("none.yaml"))
    for text, reason in (
        ("- a\n", "Expected YAML dict"),
        ("a: [\n", "not a task"),
        ("doc_to_text: x\n", "neither task: NAME nor group: NAME"),
        ("task: [a, b]\n", "neither task: NAME nor group: NAME"),
        ("include: none.yaml\n", "none.yaml"),
    ):
        (tmp_path / "own.yaml").write_text(text)
        message = said(tmp_path, file=Path("own.yaml"))
        assert reason in message
        assert str(tmp_path / "own.yaml") in message


def test_what_lm_eval_says_of_a_task_names_it(tmp_path: Path) -> None:
    row = {"text": "?", "label": 1}
    assert "'own'" in said(tmp_path, **own(tmp_path, OWN.replace("multiple_choice", "guess"), row))
    message = said(tmp_path, **own(tmp_path, OWN.replace("acc", "accc"), row))
    assert "'own'" in message
    assert "lm-eval has no metric 'accc' of its own. Did you mean 'acc'?" in message
    assert "'own'" in said(tmp_path, **own(tmp_path, OWN + "sort_of: x\n", row))
    function = OWN.replace("label", "!function nothing.here")
    assert "nothing" in said(tmp_path, **own(tmp_path, function, row))
    broken = OWN.replace("{{text}}", "{{text.upper().nothing()}}")
    assert "'own'" in said(tmp_path, **own(tmp_path, broken, row))


@pytest.mark.parametrize("label", [2, -1])
def test_a_right_answer_that_is_no_choice(tmp_path: Path, label: int) -> None:
    rows = [{"text": "?", "label": number} for number in (0, 1, label)]
    message = said(tmp_path, **own(tmp_path, OWN, *rows))
    assert message.startswith(f"{tmp_path / 'test.jsonl'}:3: own, document 2: the right answer is {label}")
    benchmarks.check(Benchmark(name="b", **own(tmp_path, OWN, *rows), limit=2), tmp_path)
    words = [{"text": "?", "label": word} for word in ("a", "c")]
    assert "document 1: the right answer is 'c', of 2 choices" in said(tmp_path, **own(tmp_path, OWN, *words))


def test_files_without_rows_or_fields(tmp_path: Path) -> None:
    assert "the file has no rows" in said(tmp_path, **own(tmp_path, OWN))
    message = said(tmp_path, **own(tmp_path, OWN, {"text": "?", "label": 1}, {"text": "?"}))
    assert "test.jsonl:2: there is no field 'label'" in message
    assert "there is no file or folder" in said(tmp_path, file=GSM8K, data="nothing")
    assert "'PARIBUS_NOT_SET', which is not set" in said(
        tmp_path, file=GSM8K, data="${PARIBUS_NOT_SET}/gsm8k"
    )


def test_few_shot_examples_that_cannot_be_had(tmp_path: Path) -> None:
    put(tmp_path / "test.jsonl", *QUESTIONS)
    assert "reads the split 'train'" in said(tmp_path, file=GSM8K, data=".")
    put(tmp_path / "train.jsonl", *QUESTIONS)
    assert "shows 5 few-shot examples, and there are 4" in said(tmp_path, file=GSM8K, data=".")
    benchmarks.check(Benchmark(name="b", file=GSM8K, data=".", num_fewshot=4), tmp_path)
    fixed = own(tmp_path, OWN + "num_fewshot: 0\n", {"text": "?", "label": 1})
    assert "is fixed at no few-shot examples, and num_fewshot is 2" in said(tmp_path, **fixed, num_fewshot=2)


def test_tasks_that_are_refused(tmp_path: Path) -> None:
    message = said(tmp_path, file=TASKS / "humaneval" / "humaneval.yaml", data=".")
    assert "runs programs that the model wrote" in message
    assert "{kind: code}" in message
    drawn = (
        OWN.replace("multiple_choice", "generate_until") + "generation_kwargs: {do_sample: true, until: []}\n"
    )
    assert "draws its answers" in said(tmp_path, **own(tmp_path, drawn, {"text": "?", "label": 1}))
    warm = drawn.replace("do_sample: true", "temperature: 0.5")
    assert "draws its answers" in said(tmp_path, **own(tmp_path, warm, {"text": "?", "label": 1}))
    assert "pictures" in said(tmp_path, **own(tmp_path, OWN + "doc_to_image: image\n", {"text": "?"}))
    code = said(tmp_path, **own(tmp_path, "task: own\nclass: !function own.Own\n", {"text": "?"}))
    assert "fetches its documents itself" in code


def test_without_lm_eval_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'paribus[scoring]'" in said(tmp_path, task="gsm8k")


def test_without_the_hub_it_says_what_a_folder_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    before = constants.HF_HUB_OFFLINE

    def load_dataset(path: str, name: str | None = None, **_: Any) -> Any:
        asked.append(bool(constants.HF_HUB_OFFLINE))
        raise ConnectionError(f"Couldn't reach '{path}' on the Hub")

    monkeypatch.setattr(lm_eval_calls, "_hub_answers", lambda: False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    message = said(tmp_path, file=GSM8K)
    assert asked == [True]
    assert before == constants.HF_HUB_OFFLINE
    assert "Couldn't reach 'openai/gsm8k' on the Hub" in message
    assert "data: FOLDER" in message
    assert "test.jsonl" in message
    assert "train.jsonl" in message
    assert "columns answer, question" in message


def test_documents_come_from_the_hub_as_in_lm_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = datasets.Dataset.from_list(QUESTIONS)
    asked: list[tuple[Any, ...]] = []

    def load_dataset(path: str, name: str | None = None, **_: Any) -> Any:
        asked.append((path, name, bool(constants.HF_HUB_OFFLINE)))
        return datasets.DatasetDict({"test": rows, "train": rows})

    monkeypatch.setattr(lm_eval_calls, "_hub_answers", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = benchmarks.check(Benchmark(name="b", file=GSM8K, num_fewshot=3), tmp_path)
    assert asked == [("openai/gsm8k", "main", False)]
    put(tmp_path / "test.jsonl", *QUESTIONS)
    put(tmp_path / "train.jsonl", *QUESTIONS)
    local = benchmarks.check(Benchmark(name="b", file=GSM8K, data=".", num_fewshot=3), tmp_path)
    assert local == found


@pytest.mark.parametrize("name", ["mmlu", "gsm8k"])
def test_tasks_are_found_by_name(name: str, tmp_path: Path) -> None:
    if name == "gsm8k":
        put(tmp_path / "test.jsonl", *QUESTIONS)
        loaded = lm_eval_tasks.load(Benchmark(name="b", task=name, data=".", num_fewshot=0), tmp_path)
        assert list(loaded.tasks) == ["gsm8k"]
        return
    assert "reads the split 'test'" in said(tmp_path, task=name, data=".")


SVAMP = """
task: svamp
dataset_path: ChilleD/SVAMP
output_type: generate_until
test_split: test
doc_to_text: "Question: {{Body}} {{Question}}\\nAnswer:"
doc_to_target: "{{Answer | int}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 32, do_sample: false}
filter_list:
  - name: number
    filter: [{function: regex, regex_pattern: "(-?[0-9]+)"}, {function: take_first}]
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.mark.skipif("PARIBUS_DATA" not in os.environ, reason="needs public text named by PARIBUS_DATA")
def test_a_users_task_of_svamp(tmp_path: Path) -> None:
    (tmp_path / "svamp.yaml").write_text(SVAMP)
    setting = Benchmark(name="b", file=Path("svamp.yaml"), data="${PARIBUS_DATA}/svamp/SVAMP.json")
    (task,) = lm_eval_tasks.load(setting, tmp_path).tasks.values()
    assert len(task.eval_docs) == 1000
    assert task.doc_to_target(task.eval_docs[0]) == "51"
    task.build_all_requests(limit=1)
    (request,) = task.instances
    assert request.args[0].startswith("Question: Each pack of dvds costs 76 dollars.")
    request.resps = [" The answer is 51 dollars."]
    task.apply_filters()
    assert task.process_results(request.doc, [request.filtered_resps["number"]]) == {"exact_match": 1.0}


@pytest.mark.skipif("PARIBUS_DATA" not in os.environ, reason="needs public text named by PARIBUS_DATA")
def test_all_of_mmlu_from_public_files(tmp_path: Path) -> None:
    setting = Benchmark(name="b", task="mmlu", data="${PARIBUS_DATA}/mmlu", num_fewshot=5)
    loaded = lm_eval_tasks.load(setting, tmp_path)
    assert len(loaded.tasks) == 57
    assert sum(len(task.eval_docs) for task in loaded.tasks.values()) == 14042
    assert benchmarks.check(setting.model_copy(update={"limit": 1}), tmp_path)
