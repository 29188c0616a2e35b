"""Rows of a benchmark's files as its authors gave them out, under the names of the hub's columns."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from paribus.errors import DataError, Place, listed
from paribus.sources.files import read_rows
from paribus.sources.forms import Row

LETTERS: Final = "ABCD"
MMLU: Final = ("question", *LETTERS, "answer")
"""Columns of Hendrycks' csv files, which have no header."""
MMLU_PATHS: Final = ("cais/mmlu", "hails/mmlu_no_train")

Config = Mapping[str, Any]
"""A task as its YAML says, included files merged, functions by name."""


def rows_of(file: Path, headerless: bool) -> list[Row]:
    """Read a file, unpacked where it is compressed; `headerless` may lack the header of Hendrycks' csv."""
    data = file.read_bytes() if file.suffix == ".gz" or headerless else b""
    name = file.name
    if file.suffix == ".gz":
        try:
            data, name = gzip.decompress(data), file.stem
        except (OSError, EOFError) as fault:
            raise DataError(
                f"cannot be unpacked: {fault}", place=Place(file), way_out="Copy or download it again."
            ) from fault
    bare = headerless and name.endswith(".csv") and not _has_header(data)
    if not bare and name == file.name:
        return read_rows(file)
    header = ",".join(MMLU).encode() + b"\n" if bare else b""
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder) / name
        unpacked.write_bytes(header + data)
        try:
            rows = read_rows(unpacked)
        except DataError as fault:
            place = _moved(fault.place or Place(unpacked), file, bare)
            raise DataError(fault.message, way_out=fault.way_out, place=place) from fault
    return [replace(row, place=_moved(row.place, file, bare)) for row in rows]


def _moved(place: Place, file: Path, added_line: bool) -> Place:
    return Place(file, place.line - added_line if place.line else None)


def _has_header(data: bytes) -> bool:
    first = next(csv.reader(io.StringIO(data.decode("utf-8-sig", "replace"))), [])
    return "question" in (cell.strip().lower() for cell in first)


def renamed(row: Row, config: Config) -> dict[str, Any]:
    """Return a row's values under the hub's names; raises DataError where one cannot be told."""
    form = FORMS.get(str(config.get("dataset_path")))
    return form(row, config) if form else {str(name): value for name, value in row.values.items()}


def _mmlu(row: Row, config: Config) -> dict[str, Any]:
    """Read MMLU as on the hub, as Hendrycks' csv, or with a column a choice: `choice0` on, or `A` on."""
    values, numbered = row.values, [f"choice{number}" for number in range(len(LETTERS))]
    named = next((names for names in (numbered, list(LETTERS)) if names[0] in values), [])
    for name in ("question", *(named or ["choices"]), "answer"):
        if values.get(name) is None:
            raise DataError(
                f"{row.where}there is no field {name!r}, which the task reads.",
                place=row.place,
                way_out=f"Columns are question, choices, answer; or question, {', '.join(numbered)}, answer; "
                f"or {', '.join(MMLU)}. This row has: {listed(map(str, values))}.",
            )
    choices = [str(values[name]) for name in named] or values["choices"]
    if not isinstance(choices, list):
        raise DataError(
            f"{row.where}choices must be a list.", place=row.place, way_out="Write one column a choice."
        )
    return {
        "question": str(values["question"]),
        "subject": values.get("subject", config.get("dataset_name")),
        "choices": choices,
        "answer": _index(row, values["answer"], len(choices)),
    }


def _index(row: Row, answer: Any, count: int) -> int:
    """Return a right answer's index, written as a number from 0 or as a letter."""
    written = str(answer).strip()
    index = int(written) if written.isdecimal() else "ABCDEFGHIJ".find(written) if len(written) == 1 else -1
    if not 0 <= index < count:
        raise DataError(
            f"{row.where}answer is {answer!r} where there are {count} choices.",
            place=row.place,
            way_out=f"It is a number from 0 to {count - 1}, or a letter from A to {'ABCDEFGHIJ'[count - 1]}.",
        )
    return index


FORMS: Final[dict[str, Callable[[Row, Config], dict[str, Any]]]] = dict.fromkeys(MMLU_PATHS, _mmlu)
"""How rows in a data set's first form become those of the hub, by the name of the hub's data set.

Files of GSM8K and HumanEval have the hub's columns as they are.
"""
