"""The forms a row of a data file can have, and how each becomes a conversation.

A form lists its fields; a study's `columns` says which column of the file holds a field that is called
otherwise. Whatever is wrong is said with the file, the line, the field and the nearest column.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from paribus.errors import DataError, Place, nearest
from paribus.sources.blocks import Form
from paribus.sources.examples import Role, Turn

ALPACA_INPUT = "{instruction}\n\n{input}"
ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
}
"""The names under which the speakers of a conversation are known, and the role of each."""


@dataclass(frozen=True)
class Row:
    """One row of a file; `number` counts rows from 1, `place` has a line where the file has lines."""

    values: Mapping[str, Any]
    number: int
    place: Place

    @property
    def where(self) -> str:
        return "" if self.place.line else f"row {self.number}: "


@dataclass(frozen=True)
class Reader:
    """Reads the fields of one form out of rows, under the names that a column map gives them."""

    form: Form
    columns: Mapping[str, str]

    def __post_init__(self) -> None:
        known = [*FIELDS[self.form], *OPTIONAL[self.form], "group"]
        for name in self.columns:
            if name not in known:
                raise DataError(
                    f"data.columns names the field {name!r}, which the form {self.form} does not have.",
                    way_out=nearest(name, known),
                )

    def column(self, field: str) -> str:
        """Return the column that holds a field."""
        return self.columns.get(field, field)

    def conversation(self, row: Row) -> tuple[Turn, ...]:
        """Turn a row into a conversation that ends with an answer; raises DataError with row and field."""
        return _READERS[self.form](self, row)

    def group(self, row: Row) -> str:
        """Return the group a row is scored in: `all` unless the column map has a `group`."""
        if "group" not in self.columns:
            return "all"
        value = self.value(row, "group")
        name = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
        if not re.fullmatch(r"[\w-]+", name):
            raise self.error(row, "group", f"is {name!r}; a group is a word of letters, digits, _ and -")
        return name

    def text(self, row: Row, field: str) -> str:
        """Return a field that must hold text."""
        value = self.value(row, field)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = _digits(value)
        if not isinstance(value, str):
            raise self.error(row, field, f"must be text and is {_kind(value)}")
        if not value.strip():
            raise self.error(row, field, "is empty", "Fill it in or remove the row.")
        if _halved(value):
            raise self.error(row, field, _HALVED)
        return value

    def optional(self, row: Row, field: str) -> str:
        """Return a field that may be missing or empty; '' then."""
        value = row.values.get(self.column(field))
        return self.text(row, field) if value is not None and str(value).strip() else ""

    def value(self, row: Row, field: str) -> Any:
        """Return a field that must exist."""
        column = self.column(field)
        if column not in row.values:
            names = [str(name) for name in row.values]
            raise self.error(row, field, "is missing", self._absent(field, column, names))
        if row.values[column] is None:
            raise self.error(row, field, "is null", "Fill it in or remove the row.")
        return row.values[column]

    def _absent(self, field: str, column: str, names: list[str]) -> str:
        taken = {self.column(other) for other in FIELDS[self.form]}
        hint = nearest(column, [name for name in names if name not in taken] or names)
        if set(names) <= taken:
            return f"Fill it in or remove the row. {hint[hint.index('Available') :]}"
        if hint.startswith("Did you mean"):
            guess = hint.split("'")[1]
            return f"{hint} Set data.columns: {{{field}: {guess}}}, or another data.form than {self.form}."
        return f"{hint} Say which column holds it with data.columns: {{{field}: NAME}}, or set data.form."

    def error(self, row: Row, field: str, fault: str, way_out: str | None = None) -> DataError:
        column = self.column(field)
        called = f"column {column!r} (field {field!r})" if column != field else f"field {field!r}"
        return DataError(f"{row.where}{called} {fault}.", way_out=way_out, place=row.place)


def _prompt_completion(reader: Reader, row: Row) -> tuple[Turn, ...]:
    asked = Turn("user", reader.text(row, "prompt"))
    return (*_system(reader, row), asked, Turn("assistant", reader.text(row, "completion")))


def _alpaca(reader: Reader, row: Row) -> tuple[Turn, ...]:
    instruction, given = reader.text(row, "instruction"), reader.optional(row, "input")
    prompt = ALPACA_INPUT.format(instruction=instruction, input=given) if given else instruction
    return (*_system(reader, row), Turn("user", prompt), Turn("assistant", reader.text(row, "output")))


def _text(reader: Reader, row: Row) -> tuple[Turn, ...]:
    return (Turn("text", reader.text(row, "text")),)


def _classification(reader: Reader, row: Row) -> tuple[Turn, ...]:
    return (Turn("text", reader.text(row, "text")), Turn("label", reader.text(row, "label").strip()))


def _messages(reader: Reader, row: Row) -> tuple[Turn, ...]:
    return _spoken(reader, row, "messages", "role", "content")


def _sharegpt(reader: Reader, row: Row) -> tuple[Turn, ...]:
    return (*_system(reader, row), *_spoken(reader, row, "conversations", "from", "value"))


def _system(reader: Reader, row: Row) -> tuple[Turn, ...]:
    text = reader.optional(row, "system")
    return (Turn("system", text),) if text else ()


def _spoken(reader: Reader, row: Row, field: str, who: str, what: str) -> tuple[Turn, ...]:
    """Read a list of turns; those after the last answer have nobody who answers them and are left out."""
    listed = reader.value(row, field)
    if isinstance(listed, str) and listed.lstrip().startswith("["):  # a csv file can hold a list only as text
        try:
            listed = json.loads(listed)
        except (json.JSONDecodeError, RecursionError) as fault:
            raise reader.error(row, field, f"is not a JSON list: {fault}") from fault
    if not isinstance(listed, list) or not listed:
        raise reader.error(row, field, f"must be a list of turns and is {_kind(listed)}")
    turns = [
        _turn(partial(_fault, reader, row, field, n), item, who, what) for n, item in enumerate(listed, 1)
    ]
    answers = [number for number, turn in enumerate(turns) if turn.role == "assistant"]
    if not answers:
        raise reader.error(row, field, "has no turn of the assistant, so there is nothing to learn")
    return tuple(turns[: answers[-1] + 1])


def _fault(reader: Reader, row: Row, field: str, number: int, *texts: str) -> DataError:
    return reader.error(row, field, f"turn {number} {texts[0]}", *texts[1:])


def _turn(fault: Callable[..., DataError], item: Any, who: str, what: str) -> Turn:
    if not isinstance(item, Mapping):
        raise fault(f"must be an object with {who!r} and {what!r} and is {_kind(item)}")
    for key in (who, what):
        if key not in item:
            raise fault(f"has no {key!r}", nearest(key, map(str, item)))
    if item[who] not in ROLES:
        raise fault(f"has the {who} {item[who]!r}, which is not known", nearest(str(item[who]), ROLES))
    text = _joined(item[what])
    if text is None or (not text.strip() and ROLES[item[who]] != "system"):
        raise fault(f"has a {what!r} that is {'empty' if text is not None else _kind(item[what])}")
    if _halved(text):
        raise fault(f"has a {what!r} that {_HALVED}")
    return Turn(ROLES[item[who]], text)


def _joined(content: Any) -> str | None:
    """Return content that is text, or a list of text parts; None where it is neither."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        return "".join(map(str, parts)) if all(isinstance(part, str) for part in parts) else None
    return None


_HALVED = "holds half of a character, a surrogate without its partner, as text that was cut amid an emoji"


def _halved(text: str) -> bool:
    """Say whether a text holds what no tokenizer can read: a surrogate that a cut or an escape left alone."""
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)


def _digits(value: float) -> Any:
    """Write a number with all its digits, a whole one without a point; what is not finite stays as it is."""
    if isinstance(value, int) or not math.isfinite(value):
        return str(value) if isinstance(value, int) else value
    return str(int(value)) if value.is_integer() and abs(value) < 1e16 else repr(value)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, float) and not math.isfinite(value):
        return f"the number {value}"
    if isinstance(value, list) and not value:
        return "an empty list"
    names = {bool: "a truth value", str: "text", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "an object")


FIELDS: dict[Form, tuple[str, ...]] = {
    "prompt_completion": ("prompt", "completion"),
    "messages": ("messages",),
    "alpaca": ("instruction", "output"),
    "sharegpt": ("conversations",),
    "text": ("text",),
    "classification": ("text", "label"),
}
OPTIONAL: dict[Form, tuple[str, ...]] = {
    "prompt_completion": ("system",),
    "messages": (),
    "alpaca": ("input", "system"),
    "sharegpt": ("system",),
    "text": (),
    "classification": (),
}
_READERS: dict[Form, Callable[[Reader, Row], tuple[Turn, ...]]] = {
    "prompt_completion": _prompt_completion,
    "messages": _messages,
    "alpaca": _alpaca,
    "sharegpt": _sharegpt,
    "text": _text,
    "classification": _classification,
}
