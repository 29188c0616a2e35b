"""A conversation as text, and which of its characters are answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from paribus.errors import DataError
from paribus.sources.examples import Example

MARK = "\ue000{}\ue001"
"""Stands for an answer while a template is probed; private-use characters, which no template touches."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text of one conversation; `answers` are the characters of each answer with the token that ends it.

    `adds_special_tokens`: the tokenizer puts its own first and last tokens around the text.
    """

    text: str
    answers: tuple[Span, ...]
    adds_special_tokens: bool


def render(example: Example, tokenizer: Any, mode: Literal["chat", "plain"]) -> Rendered:
    """Render an example by the tokenizer's chat template, or plainly; raises DataError where it refuses."""
    return _plain(example, tokenizer) if mode == "plain" else _chat(example, tokenizer)


def _plain(example: Example, tokenizer: Any) -> Rendered:
    """Join the texts, with a line break where neither side has white space; end each answer."""
    end = tokenizer.eos_token or ""
    closes_itself = tokenizer("a")["input_ids"][-1:] == [tokenizer.eos_token_id]
    text, answers = "", []
    turns = [turn for turn in example.turns if turn.role != "label"]
    for number, turn in enumerate(turns, 1):
        if text and not text[-1].isspace() and not turn.text[:1].isspace():
            text += "\n"
        begin = len(text)
        text += turn.text
        if turn.role in ("assistant", "text"):
            text += "" if closes_itself and number == len(turns) else end
            answers.append((begin, len(text)))
    return Rendered(text, tuple(answers), adds_special_tokens=True)


def _chat(example: Example, tokenizer: Any) -> Rendered:
    """Find the answers by rendering once more with marks in their place."""
    text = _templated(example, tokenizer, [turn.text for turn in example.turns])
    spoken = [number for number, turn in enumerate(example.turns) if turn.role == "assistant"]
    marked = [
        MARK.format(number) if number in spoken else turn.text for number, turn in enumerate(example.turns)
    ]
    rest, pieces = _templated(example, tokenizer, marked), []
    for number in spoken:
        piece, mark, rest = rest.partition(MARK.format(number))
        if not mark:
            raise _unclear(example)
        pieces.append(piece)
    spans, place = [], len(pieces[0])
    for number, following in zip(spoken, [*pieces[1:], rest], strict=True):
        answer = _found(text, place, example.turns[number].text, following)
        if answer is None:
            raise _unclear(example)
        spans.append((place, place + len(answer)))
        place += len(answer) + len(following)
    if place != len(text) or not text.startswith(pieces[0]):
        raise _unclear(example)
    return Rendered(text, _with_ends(text, spans, _specials(tokenizer)), adds_special_tokens=False)


def _found(text: str, place: int, answer: str, following: str) -> str | None:
    """Return the answer as it stands in the text: as written, or with its outer white space removed."""
    forms = (answer, answer.strip(), answer.lstrip(), answer.rstrip())
    return next((form for form in forms if text.startswith(form + following, place)), None)


def _with_ends(text: str, spans: list[Span], specials: str) -> tuple[Span, ...]:
    """Extend each answer over the special tokens that end it.

    What ends an answer is seen after the last one, where no further turn begins; an earlier answer is
    extended only over the same text.
    """
    closing = re.compile(rf"(?:\s*(?:{specials}))*").match(text, spans[-1][1]) if specials else None
    ending = closing[0] if closing else ""
    single = re.match(rf"\s*(?:{specials})", ending) if ending else None
    first = single[0] if single else ""
    return tuple(
        (begin, end + len(ending))
        if number == len(spans) - 1
        else (begin, end + len(first) * text.startswith(first, end))
        for number, (begin, end) in enumerate(spans)
    )


def _specials(tokenizer: Any) -> str:
    """Return a pattern that matches any special token of a tokenizer, the longest first."""
    known = {str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special}
    known |= {str(token) for token in (tokenizer.eos_token,) if token}
    return "|".join(re.escape(token) for token in sorted(known, key=len, reverse=True))


def _templated(example: Example, tokenizer: Any, texts: list[str]) -> str:
    from jinja2 import TemplateError

    messages = [{"role": turn.role, "content": text} for turn, text in zip(example.turns, texts, strict=True)]
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False)
    except TemplateError as fault:
        roles = ", ".join(turn.role for turn in example.turns)
        raise DataError(
            f"the chat template refuses example {example.id} (turns: {roles}): {fault}",
            way_out="Change the example's turns, or set data.template: plain.",
        ) from fault


def _unclear(example: Example) -> DataError:
    return DataError(
        f"the chat template rewrites the answers of example {example.id}, so that they cannot be found in "
        f"its text: {example.turns[-1].text[:60]!r}",
        way_out="Set data.template: plain, or remove markup such as <think> from the answers.",
    )
