"""Metrics of generated text: the definitions of evaluate, figures out of items, and files of users."""

from __future__ import annotations

import importlib.util
import json
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from paribus.embedded import BASE, world
from paribus.errors import DataError, ModelError, ParibusError
from paribus.plan.scoring import TextMetrics
from paribus.score import answers, tasks, text
from paribus.score.blocks import Blocks
from paribus.score.subject import Subject

ALL = ("exact_match", "f1", "rouge", "sacrebleu")
DATA = TextMetrics(name="qa", data="qa.jsonl", metrics=ALL, max_new_tokens=12)
PAIRS = [
    ("the cat sat on the mat today", "the cat sat on a mat today"),
    ("Blue.", "blue"),
    ("", "nothing at all"),
    ("one two three four five", "one two three four five"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        {"prompt": one.prompt, "completion": one.completion}
        for one in world.examples("test", "same_wording", 12)
    ]
    return written(tmp_path, rows)


def written(folder: Path, rows: list[dict[str, Any]], name: str = "qa.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@cache
def loaded() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(BASE).eval(), AutoTokenizer.from_pretrained(BASE)


def subject(folder: Path, **more: Any) -> Subject:
    model, tokenizer = loaded()
    return Subject(
        **{"model": model, "tokenizer": tokenizer, "base": folder, "step": 0, "blocks": Blocks()} | more
    )


def values(scored: Any) -> dict[str, float]:
    return {figure.metric: figure.value for figure in scored.figures}


@pytest.mark.parametrize(
    ("said", "wanted", "value"),
    [
        ("The cat sat.", "a cat sat", 1.0),
        ("cat cat dog", "cat bird", 2 / 5),
        ("red, green and blue", "red", 2 / 5),
        ("dog", "cat", 0.0),
        ("", "cat", 0.0),
        ("the", "the", 0.0),  # of articles nothing is left, and SQuAD 1.1 gives nothing for nothing
    ],
)
def test_f1_counts_words_as_squad_does(said: str, wanted: str, value: float) -> None:
    assert text.f1(said, wanted) == pytest.approx(value)


def test_exact_match_is_of_whole_texts_as_in_evaluate() -> None:
    """The example in evaluate's own script: one of four."""
    wanted = ["the cat", "theater", "YELLING", "agent007"]
    said = ["cat?", "theater", "yelling", "agent"]
    found = [text._measured(["exact_match"], *pair)["exact_match"] for pair in zip(said, wanted, strict=True)]
    assert found == [0, 1, 0, 0]


def test_rouge_is_that_of_its_package() -> None:
    found = text._measured(["rouge"], *PAIRS[0])
    assert list(found) == ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    assert found["rouge1"] == pytest.approx(6 / 7)
    assert found["rouge2"] == pytest.approx(4 / 6)
    assert text._measured(["rouge"], "hello there", "Hello there!") == dict.fromkeys(found, 1)


def test_bleu_of_a_corpus_is_not_a_mean_of_sentences(folder: Path) -> None:
    import sacrebleu

    said, wanted = ([pair[side] for pair in PAIRS] for side in (0, 1))
    figure = text._bleu_figure(DATA, subject(folder), said, wanted)
    assert figure.value == pytest.approx(sacrebleu.corpus_bleu(said, [wanted]).score, abs=1e-9)
    sentences = [text._measured(["sacrebleu"], *pair)["sentence_bleu"] for pair in PAIRS]
    assert abs(figure.value - statistics.mean(sentences)) > 1
    assert sentences[3] == pytest.approx(100)
    again = text._bleu_figure(DATA, subject(folder), said, wanted)
    assert figure == again and figure.standard_error and figure.standard_error > 1
    assert text._bleu_figure(DATA, subject(folder), said[:1], wanted[:1]).standard_error is None


def test_figures_are_means_of_items_that_hold_no_text(folder: Path) -> None:
    scored = tasks.score(DATA, subject(folder, step=7))
    assert list(values(scored)) == [
        "exact_match",
        "f1",
        "rouge1",
        "rouge2",
        "rougeL",
        "rougeLsum",
        "sacrebleu",
    ]
    for figure in scored.figures[:-1]:
        column = [item[figure.metric] for item in scored.items]
        assert figure.value == pytest.approx(statistics.mean(column))
        assert figure.standard_error == pytest.approx(statistics.stdev(column) / 12**0.5)
        assert (figure.task, figure.step, figure.n, figure.higher_is_better) == ("qa", 7, 12, True)
    assert {type(value) for item in scored.items for name, value in item.items() if name != "id"} <= {
        int,
        float,
    }
    assert len({item["id"] for item in scored.items}) == 12
    assert set(scored.counts) == {"ties", "truncated_prompts", "cut_answers"}
    assert 0 < values(scored)["f1"] < 1  # the base answers in kind, and not all of it right


def test_an_answer_that_is_the_reference_scores_in_full(folder: Path) -> None:
    first = tasks.score(DATA, subject(folder, texts=folder / "texts"))
    lines = [json.loads(line) for line in (folder / "texts" / "qa-0.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [item["id"] for item in first.items]
    spoken = [{"prompt": line["prompt"], "completion": line["answer"]} for line in lines]
    full = values(tasks.score(DATA, subject(written(folder, spoken))))
    assert full.pop("sacrebleu") == pytest.approx(100)
    assert full.pop("rouge2") <= 1  # an answer of one word has no pair of words
    assert set(full.values()) == {1}


def test_a_rerun_and_a_resumed_scoring_give_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tasks.score(DATA, subject(folder))
    assert tasks.score(DATA, subject(folder)) == whole
    kept = Blocks(folder / "blocks")
    tasks.score(DATA, subject(folder, blocks=kept))
    monkeypatch.setattr("paribus.score.generate._written", lambda *_: pytest.fail("written again"))
    assert tasks.score(DATA, subject(folder, blocks=kept)) == whole


def test_no_texts_are_written_unasked(folder: Path) -> None:
    tasks.score(DATA.model_copy(update={"limit": 1}), subject(folder))
    assert [path.name for path in folder.iterdir()] == ["qa.jsonl"]


def test_templates_decide_what_the_model_reads(folder: Path) -> None:
    (example, *_) = answers.answered(
        "data",
        "qa.jsonl",
        folder,
        "prompt_completion",
        {"prompt": "prompt", "completion": "completion"},
        None,
    )
    _, tokenizer = loaded()
    question = example.turns[0].text
    assert answers.prompt_text(example, tokenizer, "plain") == question
    assert answers.prompt_text(example, tokenizer, "chat") == f"<bos><user> {question}<bot>"
    ways = [DATA.model_copy(update={"template": way}) for way in ("chat", "plain")]
    chat, plain = (tasks.score(way, subject(folder)).items for way in ways)
    assert chat != plain


def test_a_missing_template_names_the_way_out(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokenizer.chat_template = None
    with pytest.raises(ModelError, match="template: plain"):
        tasks.score(DATA, subject(folder, tokenizer=tokenizer))
    plain = DATA.model_copy(update={"template": "plain", "limit": 1})
    assert len(tasks.score(plain, subject(folder, tokenizer=tokenizer)).items) == 1


def test_a_limit_takes_what_a_larger_one_has(folder: Path) -> None:
    def ids(limit: int | None) -> list[str]:
        return [one.id for one in text._examples(DATA.model_copy(update={"limit": limit}), folder)]

    assert len(ids(4)) == 4
    assert ids(4) == [one for one in ids(None) if one in ids(4)]
    assert set(ids(4)) < set(ids(7))


def test_the_hash_is_of_the_content(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tasks.check(DATA, folder)
    rows = [json.loads(line) for line in (folder / "qa.jsonl").read_text().splitlines()]
    renamed = [{"q": row["prompt"], "a": row["completion"]} for row in rows]
    elsewhere = written(tmp_path / "..", renamed, "renamed.jsonl")
    monkeypatch.setenv("QA", str(elsewhere))
    other = DATA.model_copy(update={"data": "${QA}/renamed.jsonl", "prompt": "q", "answer": "a"})
    assert tasks.check(other, folder) == whole
    rows[3]["completion"] += "!"
    assert tasks.check(DATA, written(folder, rows)) != whole


@pytest.mark.parametrize(
    ("rows", "setting", "said"),
    [
        ([{"prompt": "a", "completion": "b"}], {"answer": "completions"}, "Did you mean 'completion'?"),
        (
            [{"prompt": "a", "completion": "b"}, {"prompt": "c"}],
            {},
            "qa.jsonl:2: field 'completion' is missing",
        ),
        ([{"prompt": " ", "completion": "b"}], {}, "qa.jsonl:1: field 'prompt' is empty"),
        ([{"prompt": "a", "completion": ["b"]}], {}, "qa.jsonl:1: field 'completion' must be text"),
        ([{"prompt": "a", "completion": "b"}], {"data": "qb.jsonl"}, "Did you mean 'qa.jsonl'?"),
        (
            [{"prompt": "a", "completion": "b"}],
            {"data": "${NOWHERE}/qa.jsonl"},
            "'NOWHERE', which is not set",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, rows: Any, setting: Any, said: str) -> None:
    with pytest.raises(DataError) as caught:
        tasks.check(DATA.model_copy(update=setting), written(tmp_path, rows))
    assert said in str(caught.value)


def test_a_missing_package_and_no_metric_are_errors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParibusError, match="metrics is empty"):
        tasks.check(DATA.model_copy(update={"metrics": ()}), folder)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for metric, package in (("rouge", "rouge-score"), ("sacrebleu", "sacrebleu")):
        with pytest.raises(ParibusError, match=f"needs the package {package}") as caught:
            tasks.check(DATA.model_copy(update={"metrics": (metric,)}), folder)
        assert "paribus[scoring]" in str(caught.value)
    assert tasks.check(DATA.model_copy(update={"metrics": ("exact_match", "f1")}), folder)


def test_a_prompt_that_is_too_long_is_cut_only_where_asked(tmp_path: Path) -> None:
    folder = written(tmp_path, [{"prompt": "red " * 300, "completion": "red"}])
    with pytest.raises(ParibusError, match="more than the 244"):
        tasks.score(DATA, subject(folder))
    assert (
        tasks.score(DATA.model_copy(update={"truncate": True}), subject(folder)).counts["truncated_prompts"]
        == 1
    )
