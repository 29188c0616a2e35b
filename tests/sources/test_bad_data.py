"""A data file that cannot be used is refused with the file, the line, the field and a way out."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from paribus.errors import DataError
from paribus.sources.blocks import FilesData, HubData
from paribus.sources.load import load_splits

GOOD = '{"prompt": "add 1 and 2", "completion": "3"}\n{"prompt": "add 1 and 3", "completion": "4"}\n'


def refused(folder: Path, content: str | bytes, name: str = "train.jsonl", **block: Any) -> DataError:
    """Load a file that holds `content` and return the error."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError) as caught:
        load_splits(FilesData(train=name, **block), folder)
    return caught.value


def test_a_missing_file_names_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(GOOD)
    with pytest.raises(DataError) as caught:
        load_splits(FilesData(train="trian.jsonl"), tmp_path)
    assert caught.value.message == f"data.train: there is no file '{tmp_path / 'trian.jsonl'}'."
    assert caught.value.way_out == "Did you mean 'train.jsonl'? Available: train.jsonl."


def test_a_missing_folder_and_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not exist\. Relative paths start at the study file"):
        load_splits(FilesData(train="nowhere/train.jsonl"), tmp_path)
    with pytest.raises(DataError, match="is a folder; name one file"):
        load_splits(FilesData(train="."), tmp_path)


def test_an_unknown_ending(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD, name="train.txt")
    assert "does not say what it is" in error.message
    assert error.way_out == "Use one of .csv, .json, .jsonl, .ndjson, .parquet, .tsv."


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", ""), ("a.jsonl", "\n\n"), ("a.json", "[]"), ("a.csv", "prompt,completion\n"), ("a.csv", "")],
)
def test_an_empty_file(tmp_path: Path, name: str, content: str) -> None:
    assert str(refused(tmp_path, content, name)).startswith(f"{tmp_path / name}: the file has no rows.")


def test_a_line_that_is_not_json_names_its_line_and_column(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD + '{"prompt": "x", completion: 3}\n')
    assert str(error.place) == f"{tmp_path / 'train.jsonl'}:3"
    assert error.message.startswith(
        "not JSON: Expecting property name enclosed in double quotes at column 17"
    )


def test_a_line_that_is_no_object(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD + "\n[1, 2]\n")
    assert str(error.place) == f"{tmp_path / 'train.jsonl'}:4"
    assert error.message == "must be an object with named fields and is [1, 2]."


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD.encode() + '{"prompt": "é"}'.encode("latin1"))
    assert str(error.place) == f"{tmp_path / 'train.jsonl'}:3"
    assert "byte 0xe9 is not UTF-8" in error.message
    assert "iconv" in str(error.way_out)


def test_a_missing_field_names_the_nearest_column(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD + '{"prompt": "x", "completions": "y"}\n')
    assert str(error.place) == f"{tmp_path / 'train.jsonl'}:3"
    assert error.message == "field 'completion' is missing."
    assert str(error.way_out).startswith("Did you mean 'completions'? Available: completions.")
    assert "data.columns: {completion: completions}" in str(error.way_out)


def test_a_mapped_column_that_is_missing(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD, columns={"completion": "answer"})
    assert error.message == "column 'answer' (field 'completion') is missing."


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (None, "is null."),
        ("", "is empty."),
        (" \n", "is empty."),
        ([], "must be text and is an empty list."),
        ({"a": 1}, "must be text and is an object."),
        (True, "must be text and is a truth value."),
    ],
)
def test_a_field_without_text(tmp_path: Path, value: Any, fault: str) -> None:
    error = refused(tmp_path, GOOD + json.dumps({"prompt": "x", "completion": value}))
    assert error.message == f"field 'completion' {fault}"
    assert str(error.place) == f"{tmp_path / 'train.jsonl'}:3"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("NaN", "must be text and is the number nan."),
        ("-Infinity", "must be text and is the number -inf."),
        (r'"cut \ud83d"', "holds half of a character, a surrogate without its partner, as text that was cut"),
        ("[" * 100_000, "nested too deeply to be an example."),
    ],
)
def test_what_json_allows_and_a_text_cannot_hold(tmp_path: Path, value: str, fault: str) -> None:
    error = refused(tmp_path, GOOD + f'{{"prompt": "x", "completion": {value}}}')
    assert fault in error.message
    assert str(error.place) == f"{tmp_path / 'train.jsonl'}:3"


def test_a_row_without_its_answer_is_not_told_to_take_the_prompt_for_it(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD + '{"prompt": "x"}')
    assert error.message == "field 'completion' is missing."
    assert error.way_out == "Fill it in or remove the row. Available: prompt."


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ("prompt,prompt,completion", "two columns are called 'prompt'"),
        ("prompt;completion", "separated by ';'"),
    ],
)
def test_a_csv_header_that_hides_a_column(tmp_path: Path, header: str, fault: str) -> None:
    error = refused(tmp_path, f"\n{header}\na,b,c\n", "t.csv")
    assert fault in error.message
    assert str(error.place) == f"{tmp_path / 't.csv'}:2"


@pytest.mark.parametrize(
    ("name", "content", "way_out"),
    [
        ("a.jsonl", gzip.compress(GOOD.encode(), mtime=0), "It is compressed by gzip: zcat a.jsonl"),
        ("a.jsonl", GOOD.encode("utf-16"), "Convert the file: iconv -f utf-16 -t utf-8 a.jsonl"),
        ("a.jsonl.gz", b"", "It is compressed; take the file out of it first: gunzip a.jsonl.gz"),
    ],
)
def test_packed_and_wide_files_are_recognised(
    tmp_path: Path, name: str, content: bytes, way_out: str
) -> None:
    assert str(refused(tmp_path, content, name).way_out).startswith(way_out)


def test_a_folder_of_many_files_is_not_listed_whole(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"part{number:03}.jsonl").write_text(GOOD)
    with pytest.raises(DataError) as caught:
        load_splits(FilesData(train="part77.jsonl"), tmp_path)
    assert str(caught.value.way_out).startswith("Did you mean 'part077.jsonl'? Available: part000.jsonl, ")
    assert str(caught.value.way_out).endswith("part023.jsonl and 76 more.")


def test_json_and_parquet_name_the_row(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": None}]
    assert refused(tmp_path, json.dumps(rows), "t.json").message == "row 2: field 'completion' is null."
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    error = refused(tmp_path, (tmp_path / "rows.parquet").read_bytes(), "t.parquet")
    assert str(error).startswith(f"{tmp_path / 't.parquet'}: row 2: field 'completion' is null.")


def test_broken_containers(tmp_path: Path) -> None:
    assert "not a parquet file" in refused(tmp_path, b"PAR1 nonsense", "t.parquet").message
    assert refused(tmp_path, '{"a": 1}', "t.json").message.startswith("must be a list of objects")
    assert str(refused(tmp_path, '[{"a": 1},\n {"a" 2}]', "t.json").place) == f"{tmp_path / 't.json'}:2"


def test_a_csv_row_with_an_unquoted_comma(tmp_path: Path) -> None:
    error = refused(tmp_path, "prompt,completion\na,b\nyes, no,c\n", "t.csv")
    assert str(error.place) == f"{tmp_path / 't.csv'}:3"
    assert error.message == "has 3 fields where the header has 2: prompt, completion."


def test_an_unclosed_csv_quote(tmp_path: Path) -> None:
    error = refused(tmp_path, 'prompt,completion\na,b\n"c,d\n', "t.csv")
    assert str(error.place) == f"{tmp_path / 't.csv'}:3"


@pytest.mark.parametrize(
    ("turns", "fault"),
    [
        ([], "must be a list of turns and is an empty list."),
        ("hello", "must be a list of turns and is text."),
        (["hello"], "turn 1 must be an object with 'role' and 'content' and is text."),
        ([{"role": "user"}], "turn 1 has no 'content'."),
        ([{"role": "usr", "content": "x"}], "turn 1 has the role 'usr', which is not known."),
        ([{"role": "user", "content": ""}], "turn 1 has a 'content' that is empty."),
        ([{"role": "user", "content": 3}], "turn 1 has a 'content' that is a number."),
        ([{"role": "user", "content": "x"}], "has no turn of the assistant, so there is nothing to learn."),
    ],
)
def test_malformed_messages(tmp_path: Path, turns: Any, fault: str) -> None:
    error = refused(tmp_path, json.dumps({"messages": turns}), form="messages")
    assert error.message == f"field 'messages' {fault}"


def test_an_unknown_field_in_the_column_map(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD, columns={"promt": "prompt"})
    assert "names the field 'promt', which the form prompt_completion does not have" in error.message
    assert str(error.way_out).startswith("Did you mean 'prompt'?")


def test_a_group_must_be_a_word(tmp_path: Path) -> None:
    rows = (GOOD + '{"prompt": "add 1 and 4", "completion": "5"}\n').replace("}", ', "kind": "a.b"}')
    assert "a group is a word" in refused(tmp_path, rows, columns={"group": "kind"}).message


def test_too_few_prompts_to_set_some_aside(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD.splitlines()[0])
    assert error.message == "data.test is missing, and too few different prompts are left for it: 1."


def test_an_unset_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_FOLDER", raising=False)
    with pytest.raises(DataError) as caught:
        load_splits(FilesData(train="${SOME_FOLDER}/train.jsonl"), tmp_path)
    assert "names the environment variable 'SOME_FOLDER', which is not set" in caught.value.message


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the hub answer with an error, as it does without a network."""

    def fail(reason: str) -> None:
        def load_dataset(*args: object, **kwargs: object) -> None:
            raise ConnectionError(reason)

        monkeypatch.setattr("datasets.load_dataset", load_dataset)

    return fail


def test_an_unreachable_hub_names_the_data_set_and_the_file_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_hub: Callable[[str], None]
) -> None:
    monkeypatch.delenv("SOME_FOLDER", raising=False)
    no_hub("Couldn't reach the hub")
    block = HubData(name="owner/set", local={"train": "${SOME_FOLDER}/train.jsonl"})
    with pytest.raises(DataError) as caught:
        load_splits(block, tmp_path)
    assert caught.value.message.startswith(
        "the data set 'owner/set' (split 'train') could not be loaded from the hub: Couldn't reach the hub. "
    )
    assert "the environment variable 'SOME_FOLDER', which is not set" in caught.value.message
    assert "data.local: {train: FILE}" in str(caught.value.way_out)
