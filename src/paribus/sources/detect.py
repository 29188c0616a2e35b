"""Recognise what a data file holds: its form, its columns, its length in tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.errors import DataError, Place
from paribus.sources.blocks import Form
from paribus.sources.examples import Turn
from paribus.sources.files import columns_of
from paribus.sources.forms import FIELDS, Reader, Row
from paribus.sources.models import unreadable_tokenizer

ASKED = ("prompt", "question", "instruction", "query", "input", "source", "problem")
ANSWERED = ("completion", "answer", "response", "output", "target", "chosen", "solution")
RUNNING = ("text", "content", "document")
SPOKEN: dict[str, Form] = {"messages": "messages", "conversations": "sharegpt"}
CHARACTERS = 3.5
"""In a token of English text, where no tokenizer can be asked."""
AROUND_A_TURN, AROUND_ALL = 6, 24
"""Tokens that a chat template adds at most times: to each turn, and once (a system turn of its own)."""


@dataclass(frozen=True)
class Detected:
    """The form of a file's rows and the columns whose names are not those of the form's fields."""

    form: Form
    columns: dict[str, str]


def detect(rows: Sequence[Row], path: Path) -> Detected:
    """Say what form the rows have; raises DataError with what was found where none fits."""
    names, first = columns_of(list(rows)), rows[0].values
    spoken = [name for name in names if _keys(first.get(name))]
    if spoken:
        return _conversation(spoken, first)
    lowered = {name.lower(): name for name in names}
    if {"instruction", "output"} <= lowered.keys():
        return _mapped("alpaca", {field: lowered[field] for field in FIELDS["alpaca"]})
    asked = next((lowered[name] for name in ASKED if name in lowered), None)
    answered = next((lowered[name] for name in ANSWERED if name in lowered), None)
    if asked and answered:
        return _mapped("prompt_completion", {"prompt": asked, "completion": answered})
    talk = next((lowered[name] for name in SPOKEN if name in lowered), None)
    if talk:  # as text in a csv file, or with a first row that the reader will refuse by name
        return _mapped(SPOKEN[talk.lower()], {talk.lower(): talk})
    text = next((lowered[name] for name in RUNNING if name in lowered), None)
    if text:
        return _mapped("text", {"text": text})
    raise DataError(
        f"none of the columns is known: {', '.join(names)}.",
        place=Place(path),
        way_out="Rename two of them to prompt and completion, or one to text or messages.",
    )


def _conversation(spoken: list[str], first: Mapping[str, Any]) -> Detected:
    usual = [name for name in ("messages", "conversations") if name in spoken]
    column = (usual or spoken)[0]
    if {"from", "value"} <= _keys(first[column]):
        return _mapped("sharegpt", {"conversations": column})
    return _mapped("messages", {"messages": column})


def _keys(value: Any) -> set[str]:
    """Return the keys of the first turn where a value is a list of turns."""
    turn = value[0] if isinstance(value, list) and value and isinstance(value[0], Mapping) else {}
    keys = set(map(str, turn))
    return keys if {"from", "value"} <= keys or {"role", "content"} <= keys else set()


def _mapped(form: Form, fields: dict[str, str]) -> Detected:
    return Detected(form, {field: column for field, column in fields.items() if field != column})


def conversations(rows: Sequence[Row], detected: Detected) -> list[tuple[Turn, ...]]:
    """Read every row in the detected form, so that a malformed one is found now."""
    reader = Reader(detected.form, detected.columns)
    return [reader.conversation(row) for row in rows]


def lengths(listed: Sequence[tuple[Turn, ...]], model: Path | None) -> list[int]:
    """Estimate how many tokens each conversation has when rendered; only the template's own are guessed."""
    tokenizer = model / "tokenizer.json" if model else None
    if tokenizer is None or not tokenizer.is_file():
        counts = [[len(turn.text) / CHARACTERS for turn in turns] for turns in listed]
    else:
        from tokenizers import Tokenizer

        try:
            whole = Tokenizer.from_file(str(tokenizer))
        except Exception as fault:  # the library raises nothing narrower
            raise unreadable_tokenizer(tokenizer.parent, fault) from fault
        counts = [
            [
                len(one.ids)
                for one in whole.encode_batch([turn.text for turn in turns], add_special_tokens=False)
            ]
            for turns in listed
        ]
    return [int(sum(count) + AROUND_A_TURN * len(count) + AROUND_ALL) for count in counts]
