"""`paribus init` writes a study that loads, plans and says why it is as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paribus.embedded import BASE, world
from paribus.errors import DataError, ModelError, StudyError
from paribus.plan.design import expand
from paribus.plan.study import Study
from paribus.sources.first import sizes
from paribus.sources.init import init, write_first_study
from paribus.techniques.base import ModelFacts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARIBUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def chat(count: int) -> list[dict[str, Any]]:
    made = world.examples("train", "same_wording", count)
    return [
        {
            "messages": [
                {"role": "user", "content": one.prompt},
                {"role": "assistant", "content": one.completion},
            ]
        }
        for one in made
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_fifty_messages_and_a_tiny_model(tmp_path: Path) -> None:
    write(tmp_path / "my chats é.jsonl", chat(50))
    written = init(str(BASE), "my chats é.jsonl", Path("studies/first"))
    assert written.path == Path("studies/first/study.yaml")
    study = Study.read(written.path)
    assert study.name == "first"
    assert study.data.model_dump(include={"train", "form", "template", "loss_on"}) == {
        "train": "../../my chats é.jsonl",
        "form": "messages",
        "template": "chat",
        "loss_on": "completion",
    }
    plan = expand(study)
    assert len(plan.jobs) == 9
    assert {job.trial.training.effective_batch_size for job in plan.jobs} == {4}
    assert {job.trial.training.max_length for job in plan.jobs} == {64}
    assert written.decisions == (
        "model: path, LlamaForCausalLM with 836 k parameters",
        "data: the form messages",
        "rendered by the tokenizer's chat template",
        "splits: 30 to train, 10 to validate, 10 to test",
        "max_length 64: the longest text has about 53 tokens",
        "effective batch 4, 3 epochs: 24 optimizer steps a trial",
        "LoRA against full fine-tuning and noise 0 against 5, 3 seeds each, in fp32: 9 trials",
        "10 test examples show only large differences: give data.test a file of more",
    )


def test_what_is_told(tmp_path: Path) -> None:
    lines = list(write_first_study("embedded", "embedded", Path("my study")))
    assert lines[0] == "wrote my study/study.yaml"
    assert lines[1] == "  model: embedded, LlamaForCausalLM with 836 k parameters"
    assert "paribus run 'my study' runs it" in lines[-1]


def test_an_existing_study_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("mine")
    with pytest.raises(StudyError, match="exists already"):
        init("embedded", "embedded", tmp_path)
    assert (tmp_path / "study.yaml").read_text() == "mine"


def test_the_embedded_default(tmp_path: Path) -> None:
    written = init("embedded", "embedded")
    assert written.path == Path("experiments/embedded_embedded/study.yaml")
    study = Study.read(written.path)
    assert study.compare.metric == "test.same_wording.loss"
    assert study.data.train_examples == 128


def _columns(rows: list[dict[str, Any]], **renamed: str) -> list[dict[str, Any]]:
    return [{renamed.get(key, key): value for key, value in row.items()} for row in rows]


ASKED = [{"prompt": f"add {n} and 1", "completion": f"{n + 1}"} for n in range(60)]
TURNS = [[{"from": "human", "value": f"add {n}"}, {"from": "gpt", "value": f"{n}"}] * 2 for n in range(60)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ASKED, {"form": "prompt_completion", "columns": {}, "loss_on": "completion"}),
        (
            _columns(ASKED, prompt="Question", completion="answer"),
            {"form": "prompt_completion", "columns": {"prompt": "Question", "completion": "answer"}},
        ),
        (_columns(ASKED, prompt="instruction", completion="output"), {"form": "alpaca", "columns": {}}),
        ([{"conversations": turns} for turns in TURNS], {"form": "sharegpt", "loss_on": "assistant"}),
        ([{"talk": row["messages"]} for row in chat(60)], {"columns": {"messages": "talk"}}),
        ([{"text": f"line {n}"} for n in range(60)], {"form": "text", "columns": {}}),
    ],
)
def test_forms_and_columns_are_recognised(
    tmp_path: Path, rows: list[dict[str, Any]], expected: dict[str, Any]
) -> None:
    data = write(tmp_path / "d.jsonl", rows)
    block = Study.read(init(str(BASE), data, tmp_path / "study").path).data.model_dump()
    assert {key: block[key] for key in expected} == expected


def test_a_folder_with_all_three_splits(tmp_path: Path) -> None:
    for name, rows in (("train", ASKED[:40]), ("dev", ASKED[40:50]), ("test", ASKED[50:])):
        write(tmp_path / f"{name}.jsonl", rows)
    study = Study.read(init("embedded", ".", tmp_path / "study").path)
    named = study.data.model_dump(include={"train", "validation", "test"})
    assert named == {"train": "../train.jsonl", "validation": "../dev.jsonl", "test": "../test.jsonl"}
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(DataError, match="has no training file"):
        init("embedded", ".", tmp_path / "other")


def test_a_data_set_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _columns(ASKED, prompt="question", completion="answer")
    monkeypatch.setattr("datasets.get_dataset_split_names", lambda name, config: ["train", "test"])
    monkeypatch.setattr("datasets.load_dataset", lambda *names, **options: asked)
    block = Study.read(init("embedded", "owner/set:main", tmp_path / "study").path).data.model_dump()
    assert {key: block[key] for key in ("source", "name", "config", "test", "validation_share")} == {
        "source": "hub",
        "name": "owner/set",
        "config": "main",
        "test": "test",
        "validation_share": 0.2,
    }
    assert block["validation"] is None
    monkeypatch.setattr("datasets.get_dataset_split_names", lambda name, config: ["test"])
    with pytest.raises(DataError, match="has no split train"):
        init("embedded", "owner/set", tmp_path / "other")


def test_what_cannot_be_recognised_is_said(tmp_path: Path) -> None:
    data = write(tmp_path / "d.jsonl", [{"a": 1, "b": 2}])
    with pytest.raises(DataError, match=r"none of the columns is known: a, b\."):
        init("embedded", data, tmp_path)
    with pytest.raises(DataError, match="there is no file"):
        init("embedded", "nowhere.jsonl", tmp_path)
    with pytest.raises(ModelError, match=r"there is no model at './nowhere'"):
        init("./nowhere", data, tmp_path)
    bad = write(tmp_path / "bad.jsonl", [*ASKED, {"prompt": "x", "completion": None}])
    with pytest.raises(DataError, match="field 'completion' is null") as caught:
        init("embedded", bad, tmp_path)
    assert str(caught.value.place).endswith("bad.jsonl:61")
    assert not (tmp_path / "study.yaml").exists()


@pytest.fixture
def facts() -> Callable[[float], ModelFacts]:
    def of(parameters: float) -> ModelFacts:
        return ModelFacts(
            architecture="L",
            model_type="l",
            parameters=int(parameters),
            bias_parameters=0,
            hidden_size=1,
            layers=1,
            vocabulary=1,
            context_length=512,
        )

    return of


def test_sizes_follow_model_and_data(facts: Callable[[float], ModelFacts]) -> None:
    tiny = sizes(facts(1e6), [100] * 1000, {"train": 800, "validation": 100, "test": 100}, 0.1)
    assert (tiny.train, tiny.validation, tiny.test, tiny.batch, tiny.epochs) == (800, 64, 100, 16, 3)
    large = sizes(facts(7e9), [600] * 1000, {"train": 900, "validation": 100, "test": 500}, 0.1)
    assert (large.train, large.test, large.epochs, large.full) == (32, 48, 1, False)
    assert (large.max_length, large.learning_rate) == (512, "2e-4")
    assert large.why_length == "the model's context; about 1000 of 1000 texts are longer and lose their end"


def test_repeated_prompts_count_once_and_too_few_are_refused(tmp_path: Path) -> None:
    rows = [{"prompt": f"ask {n % 10}", "completion": f"answer {n}"} for n in range(50)]
    written = init("embedded", write(tmp_path / "d.jsonl", rows), tmp_path / "study")
    assert "splits: 30 to train, 10 to validate, 10 to test" in written.decisions
    for few in (rows[:1], rows[:2], [{"prompt": "same", "completion": str(n)} for n in range(50)]):
        with pytest.raises(
            DataError, match=r"few\.jsonl: data\.\w+ is missing, and too few different prompts"
        ):
            init("embedded", write(tmp_path / "few.jsonl", few), tmp_path / "few")
    assert not (tmp_path / "few").exists()


@pytest.mark.parametrize("first", ['[{"speaker": "user", "content": "a"}]', "[]", '"text"'])
def test_a_first_row_that_is_malformed_is_named_by_its_field(tmp_path: Path, first: str) -> None:
    (tmp_path / "d.jsonl").write_text(f'{{"messages": {first}}}')
    with pytest.raises(DataError, match="field 'messages'"):
        init("embedded", str(tmp_path / "d.jsonl"), tmp_path / "study")


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    model = Path(shutil.copytree(BASE, tmp_path / "model"))
    (model / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"the tokenizer in .* cannot be loaded: "):
        init(str(model), write(tmp_path / "d.jsonl", chat(50)), tmp_path / "study")


@pytest.mark.parametrize("count", [3, 5, 12, 50, 400])
def test_any_number_of_rows_gives_a_study_that_plans(tmp_path: Path, count: int) -> None:
    data = write(tmp_path / "d.jsonl", chat(count))
    study = Study.read(init("embedded", data, tmp_path / "study").path)
    assert len(expand(study).jobs) == 9
