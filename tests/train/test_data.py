"""What is learnt is exactly the answer, to the character, in every form of chat."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.errors import DataError
from paribus.sources.blocks import EmbeddedModel, FilesData
from paribus.sources.examples import Example, Role, Turn, numbered
from paribus.sources.models import locate
from paribus.train.data import NO_TARGET, Encoded, Encoder, collate, encode, encode_all, load_tokenizer

CHATML = (
    "{% for m in messages %}{{ '<bos>' + m.role + '\n' + m.content + '<eos>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<bos>assistant\n' }}{% endif %}"
)
TRIMMING = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ ' ' + m.content | trim + ' <eos>' }}"
    "{% else %}{{ '<bos>[INST] ' + m.content | trim + ' [/INST]' }}{% endif %}{% endfor %}"
)
ENDLESS = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
UPPER = "{% for m in messages %}{{ m.role + ': ' + m.content | upper + '<eos>' }}{% endfor %}"
ALTERNATING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
    "{{ m.content + '<eos>' }}{% endfor %}"
)
TWICE = "{% for m in messages %}{{ m.content + '<eos>' }}{% endfor %}{{ messages[-1].content }}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARIBUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "encoded"


@cache
def tokenizer(template: str | None = None) -> Any:
    loaded = load_tokenizer(locate(EmbeddedModel(), Path()))
    if template is not None:
        loaded.chat_template = template
    return loaded


def conversation(*turns: tuple[Role, str]) -> Example:
    return numbered([tuple(Turn(role, text) for role, text in turns)])[0]


def learnt(
    example: Example, template: str | None = None, loss_on: str = "completion", mode: str = "chat"
) -> str:
    """Return the characters of all targets of an example, whole."""
    read = Encoder(tokenizer(template), mode, loss_on, 10_000).read(example)
    spans = [offsets for offsets, target in zip(read.offsets, read.learnt, strict=True) if target]
    return "".join(read.text[start:end] for start, end in spans)


TALK = conversation(
    ("system", "be brief"),
    ("user", "say\nred"),
    ("assistant", "red\n\nnow"),
    ("user", "blue"),
    ("assistant", "so"),
)


@pytest.mark.parametrize(
    ("template", "completion", "assistant"),
    [
        (None, " so<eos>", " red\n\nnow<eos> so<eos>"),
        (CHATML, "so<eos>", "red\n\nnow<eos>so<eos>"),
        (TRIMMING, " so <eos>", " red\n\nnow <eos> so <eos>"),
        (ENDLESS, " so", " red\n\nnow so"),
    ],
)
def test_the_last_answer_or_all_answers(template: str | None, completion: str, assistant: str) -> None:
    assert learnt(TALK, template).split() == completion.split()
    assert learnt(TALK, template, "assistant").split() == assistant.split()


def test_all_means_everything_but_the_first_token() -> None:
    read = Encoder(tokenizer(), "chat", "all", 99).read(TALK)
    assert read.learnt == (False, *[True] * (len(read.ids) - 1))


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<\r"), min_size=1, max_size=30).filter(
    str.strip
)


def written(pairs: list[tuple[str, str]], template: str) -> tuple[str, list[tuple[int, int]]]:
    """Render by hand: the text, and the characters of each answer with its end."""
    text, spans = "", []
    for asked, answered in pairs:
        if template == CHATML:
            text += f"<bos>user\n{asked}<eos>\n<bos>assistant\n"
            answer = f"{answered}<eos>"
        else:
            text += f"<bos>[INST] {asked.strip()} [/INST] "
            answer = f"{answered.strip()} <eos>"
        spans.append((len(text), len(text) + len(answer)))
        text += answer + ("\n" if template == CHATML else "")
    return text, spans


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3),
    st.sampled_from([CHATML, TRIMMING]),
    st.sampled_from(["completion", "assistant"]),
)
def test_targets_are_the_answers_and_their_ends(
    pairs: list[tuple[str, str]], template: str, loss_on: str
) -> None:
    turns = [turn for asked, answered in pairs for turn in (("user", asked), ("assistant", answered))]
    read = Encoder(tokenizer(template), "chat", loss_on, 10_000).read(conversation(*turns))
    text, spans = written(pairs, template)
    assert read.text == text
    answers = {place for span in (spans if loss_on == "assistant" else spans[-1:]) for place in range(*span)}
    tokens = [set(range(*offsets)) for offsets in read.offsets]
    assert [bool(token & answers) for token in tokens] == list(read.learnt)
    covered = {place for token, target in zip(tokens, read.learnt, strict=True) if target for place in token}
    assert all(text[place].isspace() for place in answers - covered)


def test_plain_texts_are_joined_and_ended() -> None:
    example = conversation(("user", "say red"), ("assistant", "red"))
    read = Encoder(tokenizer(), "plain", "completion", 99).read(example)
    assert read.text == "say red\nred<eos>"
    assert learnt(example, mode="plain").strip() == "red<eos>"
    ended = conversation(("user", "say red "), ("assistant", "red"))
    assert Encoder(tokenizer(), "plain", "completion", 99).read(ended).text == "say red red<eos>"


def test_running_text_is_learnt_whole() -> None:
    block = FilesData(train="t.jsonl", form="text")
    (row,) = encode([conversation(("text", "the swan is white"))], tokenizer(), block, 99)
    assert row.labels == (NO_TARGET, *row.input_ids[1:])
    assert row.ends_with_eos


def test_a_tokenizer_that_ends_texts_itself_ends_them_once(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    own = load_tokenizer(locate(EmbeddedModel(), Path()))
    own.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", own.bos_token_id), ("<eos>", own.eos_token_id)]
    )
    example = conversation(("user", "say red"), ("assistant", "red"))
    row = Encoder(own, "plain", "completion", 99).encoded(example)
    assert row.input_ids.count(own.eos_token_id) == 1
    assert row.labels[-1] == own.eos_token_id
    assert row.labels[0] == NO_TARGET
    assert row.ends_with_eos


BLOCK = FilesData(train="t.jsonl")
TWO = [
    conversation(("user", "say red"), ("assistant", "red")),
    conversation(("user", "say red and blue and red and blue and red"), ("assistant", "yes")),
]


def test_truncation_is_on_the_right_and_marked() -> None:
    (short, long), (cut, *_) = encode(TWO, tokenizer(), BLOCK, 99), encode(TWO[:1], tokenizer(), BLOCK, 6)
    assert not short.truncated
    assert short.ends_with_eos
    assert cut.truncated
    assert not cut.ends_with_eos
    assert cut.input_ids == short.input_ids[:6]
    assert cut.labels == short.labels[:6]
    assert len(long.input_ids) > len(short.input_ids)


def test_examples_that_lost_every_target_are_left_out_and_counted() -> None:
    kept = encode(TWO, tokenizer(), BLOCK, 8)
    assert [row.example_id for row in kept] == [TWO[0].id]
    whole = encode_all(TWO, tokenizer(), BLOCK, 8)
    assert [row.targets > 0 for row in whole] == [True, False]
    with pytest.raises(DataError, match="2 tokens leave no target in any of 2 examples"):
        encode(TWO, tokenizer(), BLOCK, 2)
    assert encode([], tokenizer(), BLOCK, 8) == []


def test_without_an_end_in_the_template_no_answer_ends() -> None:
    (row,) = encode(TWO[:1], tokenizer(ENDLESS), BLOCK, 99)
    assert not row.ends_with_eos


def test_templates_that_hide_the_answer_or_refuse_are_named() -> None:
    for template in (UPPER, TWICE):
        with pytest.raises(DataError, match="the chat template rewrites the answers") as caught:
            encode(TWO[:1], tokenizer(template), BLOCK, 99)
        assert str(caught.value.way_out).startswith("Set data.template: plain")
    with pytest.raises(DataError, match=r"refuses example \w+ \(turns: system, user, .*\): no system turn"):
        encode([TALK], tokenizer(ALTERNATING), BLOCK, 99)


def test_padding_is_never_a_target() -> None:
    rows = encode(TWO, tokenizer(), BLOCK, 99)
    batch = collate(rows, pad_token_id=0)
    lengths = [len(row.input_ids) for row in rows]
    assert batch["input_ids"].shape == (2, max(lengths))
    assert batch["attention_mask"].sum(1).tolist() == lengths
    for row, ids, labels in zip(rows, batch["input_ids"], batch["labels"], strict=True):
        assert tuple(ids[: len(row.input_ids)].tolist()) == row.input_ids
        assert tuple(labels[: len(row.labels)].tolist()) == row.labels
        assert torch.all(labels[len(row.labels) :] == NO_TARGET)


def test_encoded_examples_come_back_from_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = encode_all(TWO, tokenizer(), BLOCK, 8)
    (stored,) = folder.iterdir()

    def fail(*_: object) -> Encoded:
        raise AssertionError("encoded again")

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "encoded", fail)
        assert encode_all(TWO, tokenizer(), BLOCK, 8) == fresh
    stored.write_bytes(stored.read_bytes()[:50])
    assert encode_all(TWO, tokenizer(), BLOCK, 8) == fresh
    everything = BLOCK.model_copy(update={"loss_on": "all"})
    assert encode_all(TWO, tokenizer(), everything, 8) != fresh
    assert encode_all(TWO, tokenizer(CHATML), BLOCK, 8) != fresh
    assert encode_all(TWO, tokenizer(), BLOCK, 9) != fresh
    assert len(list(folder.iterdir())) == 4
