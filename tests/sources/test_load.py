"""The same content is the same data, whatever file it comes from; splits are disjoint and limits nest."""

from __future__ import annotations

import csv
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.errors import DataError
from paribus.sources.blocks import EmbeddedData, FilesData, HubData
from paribus.sources.examples import Splits, Turn, digest, groups_sha256, numbered, shared_prompts
from paribus.sources.load import content_sha256, load_splits, overlap

ROWS = [{"prompt": f"add {n} and 2, “please”", "completion": f"that is\n{n + 2}"} for n in range(40)]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path.name


@pytest.fixture
def every_kind(tmp_path: Path) -> list[str]:
    """The same rows in each kind of file."""
    jsonl(tmp_path / "a.jsonl", ROWS)
    (tmp_path / "b.json").write_text(json.dumps(ROWS))
    (tmp_path / "c.json").write_text(json.dumps({"version": 1, "data": ROWS}))
    jsonl(tmp_path / "d.json", ROWS)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "e.parquet")
    for name, delimiter in (("f.csv", ","), ("g.tsv", "\t")):
        with (tmp_path / name).open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, ["completion", "prompt"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(ROWS)
    return ["a.jsonl", "b.json", "c.json", "d.json", "e.parquet", "f.csv", "g.tsv"]


def test_every_kind_of_file_gives_the_same_content(tmp_path: Path, every_kind: list[str]) -> None:
    found = [load_splits(FilesData(train=name), tmp_path) for name in every_kind]
    assert len({content_sha256(splits.train) for splits in found}) == 1
    assert len({groups_sha256(splits.test) for splits in found}) == 1
    assert found[0].train[0].turns == (
        Turn("user", found[0].train[0].turns[0].text),
        Turn("assistant", found[0].train[0].turns[1].text),
    )


def test_the_hub_and_a_file_in_its_place_give_the_same_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load_dataset(name: str, config: str | None, split: str, revision: str | None) -> list[dict[str, str]]:
        asked.append((name, config, split, revision))
        return ROWS[:30] if split == "train" else ROWS[30:]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    remote = load_splits(HubData(name="owner/set", config="main", revision="abc"), tmp_path)
    assert asked == [("owner/set", "main", "train", "abc"), ("owner/set", "main", "test", "abc")]
    monkeypatch.setenv("SOME_FOLDER", str(tmp_path))
    jsonl(tmp_path / "train.jsonl", ROWS[:30])
    jsonl(tmp_path / "test.jsonl", ROWS[30:])
    local = {split: f"${{SOME_FOLDER}}/{split}.jsonl" for split in ("train", "test")}
    assert load_splits(HubData(name="owner/set", local=local), tmp_path) == remote
    assert len(asked) == 2


def test_the_order_of_training_counts_and_the_hash_is_of_the_turns_alone() -> None:
    one, other = numbered([(Turn("user", "a"), Turn("assistant", "b")), (Turn("text", "c"),)])
    assert content_sha256([one, other]) != content_sha256([other, one])
    single = sha256(b'[["user","a"],["assistant","b"]]').hexdigest()
    assert content_sha256([one]) == sha256(single.encode()).hexdigest()


def test_repeated_examples_have_ids_of_their_own() -> None:
    turns = (Turn("user", "a"), Turn("assistant", "b"))
    first, second, third = (example.id for example in numbered([turns, turns, turns]))
    assert first == digest(turns)[:16]
    assert [second, third] == [f"{first}#2", f"{first}#3"]


def test_what_is_missing_is_set_aside_by_prompt(tmp_path: Path) -> None:
    rows = [*ROWS, *({**row, "completion": "again"} for row in ROWS)]  # every prompt twice
    splits = load_splits(FilesData(train=jsonl(tmp_path / "a.jsonl", rows), test_share=0.2), tmp_path)
    sizes = len(splits.train), len(splits.validation["all"]), len(splits.test["all"])
    assert sizes == (56, 8, 16)
    assert [pair.shared for pair in overlap(splits)] == [0, 0, 0]


def test_given_splits_are_kept_and_their_overlap_is_counted(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", ROWS[:20])
    jsonl(tmp_path / "test.jsonl", [*ROWS[18:25], {**ROWS[0], "completion": "else"}])
    splits = load_splits(FilesData(train="train.jsonl", validation="test.jsonl", test="test.jsonl"), tmp_path)
    assert len(splits.train) == 20
    shared = {(one.first, one.second): (one.shared, one.prompts) for one in overlap(splits)}
    assert shared == {
        ("train", "validation"): (3, 8),
        ("train", "test"): (3, 8),
        ("validation", "test"): (8, 8),
    }
    assert overlap(splits)[0].example in (ROWS[18]["prompt"], ROWS[19]["prompt"], ROWS[0]["prompt"])
    assert shared_prompts(splits) == {"all": 3}


def test_prompts_that_training_shares_are_counted_by_test_group() -> None:
    asked, other, third = (Turn("user", word) for word in ("a", "b", "c"))
    answers = [(question, Turn("assistant", text)) for question in (asked, other, third) for text in "xy"]
    train, test = numbered(answers[:3]), {"old": numbered(answers[1:4]), "new": numbered(answers[4:])}
    assert shared_prompts(Splits(train, {}, test)) == {"old": 2, "new": 0}


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30))
def test_limits_nest_and_keep_the_order(
    tmp_path_factory: pytest.TempPathFactory, one: int, other: int
) -> None:
    folder = tmp_path_factory.mktemp("limits")
    name = jsonl(folder / "a.jsonl", ROWS)
    whole = load_splits(FilesData(train=name), folder).train
    small, large = (
        load_splits(FilesData(train=name, train_examples=n), folder).train for n in sorted((one, other))
    )
    assert len(small) == min(one, other)
    assert set(small) <= set(large) <= set(whole)
    assert sorted(small, key=whole.index) == list(small)


def test_groups_come_from_a_column_and_limits_hold_in_each(tmp_path: Path) -> None:
    rows = [{**row, "kind": f"kind_{n % 2}"} for n, row in enumerate(ROWS)]
    jsonl(tmp_path / "train.jsonl", ROWS[:10])  # needs no groups where test and validation are given
    jsonl(tmp_path / "held.jsonl", rows)
    block = FilesData(
        train="train.jsonl",
        validation="held.jsonl",
        test="held.jsonl",
        columns={"group": "kind"},
        test_examples=5,
    )
    splits = load_splits(block, tmp_path)
    assert {name: len(group) for name, group in splits.test.items()} == {"kind_0": 5, "kind_1": 5}
    assert {name: len(group) for name, group in splits.validation.items()} == {"kind_0": 20, "kind_1": 20}


def first_turns(folder: Path, row: dict[str, Any], **block: Any) -> list[tuple[str, str]]:
    name = jsonl(folder / "one.jsonl", [row])
    splits = load_splits(FilesData(train=name, validation=name, test=name, **block), folder)
    return [(turn.role, turn.text) for turn in splits.train[0].turns]


def test_forms(tmp_path: Path) -> None:
    asked, answered = ("user", "add 1 and 2"), ("assistant", "3")
    gsm8k = {"question": asked[1], "answer": answered[1]}
    columns = {"prompt": "question", "completion": "answer"}
    assert first_turns(tmp_path, gsm8k, columns=columns) == [asked, answered]
    alpaca = {"instruction": "add", "input": "1 and 2", "output": 3}
    assert first_turns(tmp_path, alpaca, form="alpaca") == [("user", "add\n\n1 and 2"), answered]
    assert first_turns(tmp_path, {**alpaca, "input": ""}, form="alpaca") == [("user", "add"), answered]
    shared = [
        {"from": "human", "value": asked[1]},
        {"from": "gpt", "value": "3"},
        {"from": "human", "value": "?"},
    ]
    assert first_turns(tmp_path, {"conversations": shared}, form="sharegpt") == [asked, answered]
    parts = [{"type": "text", "text": "add 1"}, {"type": "text", "text": " and 2"}]
    spoken = [{"role": "user", "content": parts}, {"role": "assistant", "content": "3"}]
    assert first_turns(tmp_path, {"messages": spoken}, form="messages") == [asked, answered]
    assert first_turns(tmp_path, {"body": "read me"}, form="text", columns={"text": "body"}) == [
        ("text", "read me")
    ]


def test_paths_with_spaces_and_unicode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mes données"
    folder.mkdir()
    jsonl(folder / "où est-ce.jsonl", ROWS)
    monkeypatch.setenv("MES_DONNÉES", str(folder))
    given_folder = load_splits(FilesData(train="où est-ce.jsonl"), folder)
    assert load_splits(FilesData(train="${MES_DONNÉES}/où est-ce.jsonl"), tmp_path) == given_folder


def test_the_embedded_world() -> None:
    block = EmbeddedData(train_examples=90, validation_examples=18, test_examples=9)
    splits = load_splits(block, Path())
    sizes = {group: len(examples) for group, examples in splits.test.items()}
    assert sizes == {"same_wording": 9, "new_wording": 9}
    assert len(splits.train) == 90
    assert [pair.shared for pair in overlap(splits)] == [0, 0, 0]
    with pytest.raises(DataError, match=r"data\.train_examples: .* 10000000 were asked for"):
        load_splits(EmbeddedData(train_examples=10_000_000), Path())


TEXTS = [{"text": f"text {n}", "label": ("ham", "spam")[n % 2]} for n in range(20)]


def classes(
    folder: Path, rows: list[dict[str, Any]], held: list[dict[str, Any]] | None = None, **block: Any
) -> Any:
    names = [jsonl(folder / "train.jsonl", rows), jsonl(folder / "held.jsonl", held or rows)]
    given = FilesData(train=names[0], validation=names[1], test=names[1], form="classification", **block)
    return load_splits(given, folder, "classification")


def test_classes_are_those_of_training_in_their_order(tmp_path: Path) -> None:
    splits = classes(tmp_path, TEXTS)
    assert splits.classes == ("ham", "spam")
    assert splits.train[1].turns == (Turn("text", "text 1"), Turn("label", "spam"))
    assert (splits.train[1].label, splits.train[1].prompt) == ("spam", (Turn("text", "text 1"),))
    numbers = [{"body": row["text"], "label": n} for n, row in zip((10, 9, 2, 10), TEXTS, strict=False)]
    assert classes(tmp_path, numbers, columns={"text": "body"}).classes == ("2", "9", "10")
    relabelled = [TEXTS[0] | {"label": "spam"}, *TEXTS[1:], TEXTS[0]]
    assert content_sha256(classes(tmp_path, relabelled[:20]).train) != content_sha256(splits.train)


def test_a_class_that_training_has_not_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        classes(tmp_path, TEXTS, [*TEXTS[:3], {"text": "other", "label": "Spam"}])
    assert "field 'label' is 'Spam', a class that no training example has" in caught.value.message
    assert "Classes: ham, spam" in (caught.value.way_out or "")
    assert caught.value.place is not None
    assert (caught.value.place.line, Path(caught.value.place.path).name) == (4, "held.jsonl")


def test_one_class_cannot_be_learnt(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one class alone: ham"):
        classes(tmp_path, [row | {"label": "ham"} for row in TEXTS])
    with pytest.raises(DataError, match=r"one class alone"):
        classes(tmp_path, TEXTS, train_examples=1)


def test_labelled_texts_are_set_aside_by_their_text(tmp_path: Path) -> None:
    name = jsonl(tmp_path / "a.jsonl", [*TEXTS, *TEXTS])
    splits = load_splits(FilesData(train=name, form="classification"), tmp_path, "classification")
    assert [pair.shared for pair in overlap(splits)] == [0, 0, 0]
    assert len(splits.test["all"]) == 4


def test_the_embedded_world_under_each_task() -> None:
    block = EmbeddedData(train_examples=9, validation_examples=3, test_examples=6)
    labelled, running = (load_splits(block, Path(), task) for task in ("classification", "pretrain"))
    assert labelled.classes == ("animal", "plant", "thing")
    assert list(labelled.test) == ["same_wording", "new_wording"]
    assert [turn.role for turn in labelled.train[0].turns] == ["text", "label"]
    assert {name: len(found) for name, found in running.test.items()} == {"all": 6}
    assert [turn.role for turn in running.train[0].turns] == ["text"]
    for splits in (labelled, running):
        assert [pair.shared for pair in overlap(splits)] == [0, 0, 0]
    with pytest.raises(DataError, match=r"data\.train_examples: .* Ask for 0 to"):
        load_splits(EmbeddedData(train_examples=10_000_000), Path(), "classification")
