"""Documents of a benchmark are found in a user's files in any usual form; what is missing is named."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from paribus.errors import DataError
from paribus.score.local_tasks import LocalData, evaluated, fields, shots_from, wanted

GSM8K = {
    "task": "gsm8k",
    "dataset_path": "openai/gsm8k",
    "dataset_name": "main",
    "training_split": "train",
    "fewshot_split": "train",
    "test_split": "test",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{answer}}",
    "num_fewshot": 5,
}
MMLU = {
    "task": "mmlu_anatomy",
    "dataset_path": "cais/mmlu",
    "dataset_name": "anatomy",
    "test_split": "test",
    "fewshot_split": "dev",
    "fewshot_config": {"sampler": "first_n"},
    "doc_to_text": "{{question.strip()}}\nA. {{choices[0]}}",
    "doc_to_choice": ["A", "B", "C", "D"],
    "doc_to_target": "answer",
    "description": "About anatomy.\n",
}
ROWS = [{"question": f"{number}?", "answer": str(number)} for number in range(3)]
CHOSEN = [
    {"question": "Which?", "subject": "anatomy", "choices": ["a", "b,b", "None", "d"], "answer": 2},
    {"question": 'What "is"?', "subject": "anatomy", "choices": ["1", "2", "3", "4"], "answer": 0},
]


def put(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def read(place: Path, config: dict[str, Any] | None = None, shots: int | None = 0) -> dict[str, Any]:
    made = LocalData(place, shots).dataset(GSM8K if config is None else config)
    return {split: list(rows) for split, rows in made.items()}


@pytest.mark.parametrize(
    "name",
    [
        "test.jsonl",
        "test.json",
        "test.parquet",
        "test.jsonl.gz",
        "main/test.jsonl",
        "data/test.jsonl",
        "main/test-00000-of-00001.parquet",
    ],
)
def test_a_split_is_found_by_its_name(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, ROWS)
    assert read(tmp_path) == {"test": ROWS, "train": []}


def test_shards_are_read_in_their_order(tmp_path: Path) -> None:
    for shard in range(3):
        put(tmp_path / "main" / f"test-0000{shard}-of-00003.parquet", ROWS[shard : shard + 1])
    assert read(tmp_path)["test"] == ROWS


def test_one_file_is_the_split_that_is_scored(tmp_path: Path) -> None:
    put(tmp_path / "any.jsonl", ROWS)
    assert read(tmp_path / "any.jsonl") == {"test": ROWS, "train": []}
    with pytest.raises(DataError, match="draws few-shot examples from its split 'train'") as said:
        read(tmp_path / "any.jsonl", shots=2)
    assert "num_fewshot: 0" in str(said.value)


def test_few_shot_examples_need_their_split(tmp_path: Path) -> None:
    put(tmp_path / "test.jsonl", ROWS)
    for shots in (None, 2):
        with pytest.raises(DataError, match="reads the split 'train'") as said:
            read(tmp_path, shots=shots)
        assert "Add one of" in str(said.value)
        assert "test.jsonl" in str(said.value)
    put(tmp_path / "train.jsonl", ROWS[:1])
    assert read(tmp_path, shots=2)["train"] == ROWS[:1]


def test_validation_is_found_under_its_short_names(tmp_path: Path) -> None:
    put(tmp_path / "val.jsonl", ROWS)
    config = {"task": "t", "validation_split": "validation", "doc_to_text": "{{question}}"}
    assert read(tmp_path, config) == {"validation": ROWS}


FORMS: dict[str, list[Any]] = {
    "test/anatomy.jsonl": CHOSEN,
    "test/anatomy_test.parquet": CHOSEN,
    "anatomy_test.jsonl": CHOSEN,
    "test.jsonl": [*CHOSEN, {**CHOSEN[0], "subject": "astronomy"}],
    "test/anatomy_test.csv": [
        ["question", "choice0", "choice1", "choice2", "choice3", "answer"],
        *([row["question"], *row["choices"], row["answer"]] for row in CHOSEN),
    ],
    "anatomy/test.csv": [[r["question"], *r["choices"], "ABCD"[r["answer"]]] for r in CHOSEN],
    "anatomy/test.jsonl": [
        {"question": r["question"], **dict(zip("ABCD", r["choices"], strict=True)), "answer": "CA"[n]}
        for n, r in enumerate(CHOSEN)
    ],
}


@pytest.mark.parametrize("name", FORMS)
def test_mmlu_is_read_in_every_form_it_is_given_out_in(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, FORMS[name])
    assert read(tmp_path, MMLU) == {"test": CHOSEN, "dev": []}


def test_a_compressed_csv_without_header_keeps_its_lines(tmp_path: Path) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["Which?", *"abcd", "A"], ["What?", *"abcd", "E"]])
    (tmp_path / "anatomy_test.csv.gz").write_bytes(gzip.compress(text.getvalue().encode()))
    with pytest.raises(DataError, match=r"anatomy_test\.csv\.gz:2: answer is 'E' where there are 4") as said:
        read(tmp_path, MMLU)
    assert "from 0 to 3, or a letter from A to D" in str(said.value)


@pytest.mark.parametrize("answer", [4, -1, "4", "E", "", 1.5, "two"])
def test_an_answer_out_of_range_is_named(tmp_path: Path, answer: Any) -> None:
    put(tmp_path / "anatomy_test.jsonl", [CHOSEN[0], {**CHOSEN[1], "answer": answer}])
    with pytest.raises(DataError, match=r"anatomy_test\.jsonl:2: answer is"):
        read(tmp_path, MMLU)


@pytest.mark.parametrize("field", ["question", "choices", "answer"])
def test_a_row_of_mmlu_without_a_field_is_named(tmp_path: Path, field: str) -> None:
    rows = [CHOSEN[0], {name: value for name, value in CHOSEN[1].items() if name != field}]
    put(tmp_path / "anatomy_test.jsonl", rows)
    with pytest.raises(DataError, match=rf"anatomy_test\.jsonl:2: there is no field '{field}'"):
        read(tmp_path, MMLU)
    put(tmp_path / "anatomy_test.jsonl", [{**CHOSEN[0], "choices": "a,b"}])
    with pytest.raises(DataError, match="choices must be a list"):
        read(tmp_path, MMLU)


def test_a_row_without_its_field_is_named(tmp_path: Path) -> None:
    put(tmp_path / "test.jsonl", [*ROWS, {"question": "?", "anwser": "1"}])
    with pytest.raises(DataError, match=r"test\.jsonl:4: there is no field 'answer'") as said:
        read(tmp_path)
    assert "Did you mean 'anwser'?" in str(said.value)
    put(tmp_path / "other" / "test.json", [*ROWS, {"question": "?"}])
    with pytest.raises(DataError, match=r"test\.json: row 4: there is no field 'answer'"):
        read(tmp_path / "other")


def test_columns_are_those_that_templates_read() -> None:
    assert fields(GSM8K) == ("question", "answer")
    assert fields(MMLU) == ("choices", "question", "answer")
    assert fields({**GSM8K, "process_docs": "/task/utils.read"}) == ()
    assert fields({"doc_to_text": "", "doc_to_target": " ", "doc_to_choice": "/a/utils.f"}) == ()
    looped = "{% for one in choices %}{{loop.index}}{{one}}{% endfor %}"
    assert fields({"doc_to_text": looped, "doc_to_target": "Answer Key"}) == ("choices", "Answer Key")


def test_splits_are_those_that_lm_eval_takes() -> None:
    assert (evaluated(MMLU), shots_from(MMLU)) == ("test", "dev")
    both = {"validation_split": "validation", "training_split": "train"}
    assert (evaluated(both), shots_from(both)) == ("validation", "train")
    assert shots_from({"test_split": "test"}) == "test"
    assert shots_from({"test_split": "test", "fewshot_config": {"split": "dev"}}) == "dev"
    assert shots_from({"test_split": "test", "fewshot_config": {"samples": [{}]}}) is None


def test_what_a_folder_needs_is_said() -> None:
    assert wanted(GSM8K) == (
        "Name local files in the hub's place: data: FOLDER. It needs test.jsonl (or main/test.jsonl, "
        "test/main.jsonl; also json, csv, parquet) and, for few-shot examples, train.jsonl, with the columns "
        "answer, question."
    )
    assert "of the hub's 'a/b'" in wanted({"dataset_path": "a/b", "test_split": "test", "process_docs": "f"})


def test_two_parts_are_not_both_read_from_one_file_whole(tmp_path: Path) -> None:
    put(tmp_path / "test.jsonl", [{n: v for n, v in row.items() if n != "subject"} for row in CHOSEN])
    data = LocalData(tmp_path, 0)
    data.dataset(MMLU)
    with pytest.raises(DataError, match="the parts 'anatomy' and 'astronomy' would both be read") as said:
        data.dataset({**MMLU, "task": "mmlu_astronomy", "dataset_name": "astronomy"})
    assert "a column 'subject' that says 'astronomy'" in str(said.value)


def test_a_part_that_no_row_is_of_is_named(tmp_path: Path) -> None:
    put(tmp_path / "test.jsonl", CHOSEN)
    with pytest.raises(DataError, match="no row has the subject 'anatomie'") as said:
        read(tmp_path, {**MMLU, "dataset_name": "anatomie"})
    assert "Did you mean 'anatomy'?" in str(said.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file or folder"):
        read(tmp_path / "none")
    with pytest.raises(DataError, match="reads the split 'test'"):
        read(tmp_path)
    (tmp_path / "test.jsonl").write_text("")
    with pytest.raises(DataError, match="the file has no rows"):
        read(tmp_path)
    (tmp_path / "test.jsonl").write_text('{"question": "?"\n')
    with pytest.raises(DataError, match=r"test\.jsonl:1: not JSON"):
        read(tmp_path)
    put(tmp_path / "test.jsonl", [*ROWS, {"question": "?", "answer": 4}])
    with pytest.raises(
        DataError, match="the column 'answer' of the task 'gsm8k' holds values of several kinds"
    ):
        read(tmp_path)
    put(tmp_path / "test.json", ROWS)
    with pytest.raises(DataError, match=r"there twice: test\.jsonl, test\.json"):
        read(tmp_path)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "test.jsonl.gz").write_bytes(b"\x1f\x8bcut")
    with pytest.raises(DataError, match=r"test\.jsonl\.gz: cannot be unpacked"):
        read(tmp_path / "packed")
    (tmp_path / "packed" / "test.jsonl.gz").write_bytes(gzip.compress(b'{"question": 1}\n{'))
    with pytest.raises(DataError, match=r"packed/test\.jsonl\.gz:2: not JSON"):
        read(tmp_path / "packed")


def test_each_document_has_its_place(tmp_path: Path) -> None:
    put(tmp_path / "test.jsonl", ROWS)
    data = LocalData(tmp_path, 0)
    data.dataset(GSM8K)
    assert [place.line for place in data.places["gsm8k"]] == [1, 2, 3]
