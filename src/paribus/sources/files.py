"""Rows out of data files (jsonl, json, parquet, csv, tsv), each with the line or row it came from."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paribus.errors import DataError, Place, listed, nearest
from paribus.sources.forms import Row

VARIABLE = re.compile(r"\$\{([^}]*)\}")
COMPRESSED = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".zip": "unzip"}
"""Endings of files that hold another file, and the command that takes it out."""
LONGEST_FIELD = 2**27
"""Characters in one csv field, far above Python's default of 131,072 that long documents exceed."""


def resolve(written: str, base: Path) -> Path:
    """Return the path a study means: `${NAME}` from the environment, `~`, else within the study's folder."""

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if not found:
            raise DataError(
                f"the path {written!r} names the environment variable {match[1]!r}, which is not set.",
                way_out=f"Set it to the folder that holds the files: export {match[1]}=/path/to/folder",
            )
        return found

    return base / Path(VARIABLE.sub(value, written)).expanduser()


def read_rows(path: Path, field: str = "data") -> list[Row]:
    """Read all rows of a data file; raises DataError where it is missing, empty or malformed.

    `field` is the name under which a study gave the path, for the message.
    """
    if not path.exists():
        raise DataError(f"{field}: there is no file {str(path)!r}.", way_out=_siblings(path))
    if path.is_dir():
        raise DataError(f"{field}: {str(path)!r} is a folder; name one file.", way_out=_inside(path))
    if path.suffix.lower() not in _READERS:
        raise DataError(
            f"{field}: the ending of {str(path)!r} does not say what it is.",
            way_out=_unpacked(path) or f"Use one of {', '.join(sorted(_READERS))}.",
        )
    try:
        rows = list(_READERS[path.suffix.lower()](path))
    except OSError as fault:
        raise DataError(f"cannot be read: {fault.strerror}.", place=Place(path)) from fault
    if not rows:
        raise DataError("the file has no rows.", place=Place(path), way_out=f"{field} needs at least one.")
    return rows


def columns_of(rows: list[Row]) -> list[str]:
    """Return the names of all columns, in the order in which they first occur."""
    return list(dict.fromkeys(str(name) for row in rows for name in row.values))


def _unpacked(path: Path) -> str | None:
    command = COMPRESSED.get(path.suffix.lower())
    return f"It is compressed; take the file out of it first: {command} {path.name}" if command else None


def _siblings(path: Path) -> str:
    if not path.parent.is_dir():
        return f"The folder {str(path.parent)!r} does not exist. Relative paths start at the study file."
    return _inside(path.parent, path.name)


def _inside(folder: Path, name: str | None = None) -> str:
    files = [entry.name for entry in folder.iterdir() if entry.suffix.lower() in _READERS]
    if not files:
        return f"The folder {str(folder)!r} has no data files."
    return nearest(name, files) if name else f"Available: {listed(files)}."


def _decoded(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise DataError(
            f"byte {data[fault.start]:#04x} is not UTF-8.",
            place=Place(path, line),
            way_out=_readable(data, path.name),
        ) from fault


def _readable(data: bytes, name: str) -> str:
    """Say how a file becomes UTF-8, by its first bytes."""
    if data.startswith(b"\x1f\x8b"):
        return f"It is compressed by gzip: zcat {name} > unpacked_{name}"
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    encoding = "-f utf-16" if wide else "for example: iconv -f latin1"
    return f"Convert the file{': iconv ' if wide else ', '}{encoding} -t utf-8 {name}"


def _jsonl(path: Path) -> Iterator[Row]:
    number = 0
    for line, text in enumerate(_decoded(path).split("\n"), 1):
        if text.strip():
            number += 1
            yield _row(_parsed(path, line, text), number, Place(path, line))


def _parsed(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as fault:
        raise DataError(
            f"not JSON: {fault.msg} at column {fault.colno}: {_excerpt(text, fault.pos)}",
            place=Place(path, line),
            way_out="Each line must be one JSON object.",
        ) from fault
    except RecursionError as fault:
        raise _too_deep(Place(path, line)) from fault


def _too_deep(place: Place) -> DataError:
    return DataError("nested too deeply to be an example.", place=place)


def _json(path: Path) -> Iterator[Row]:
    """Read a list of objects, alone or as the only list in an object; or, under the wrong ending, jsonl."""
    text = _decoded(path)
    if not text.strip():
        return
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as fault:
        if fault.msg == "Extra data":
            yield from _jsonl(path)
            return
        raise DataError(
            f"not JSON: {fault.msg} at column {fault.colno}: {_excerpt(text, fault.pos)}",
            place=Place(path, fault.lineno),
            way_out="The file must be a JSON list of objects.",
        ) from fault
    except RecursionError as fault:
        raise _too_deep(Place(path)) from fault
    yield from (_row(item, number, Place(path)) for number, item in enumerate(_only_list(whole, path), 1))


def _only_list(whole: Any, path: Path) -> list[Any]:
    lists = [value for value in whole.values() if isinstance(value, list)] if isinstance(whole, dict) else []
    if isinstance(whole, list) or len(lists) == 1:
        return whole if isinstance(whole, list) else lists[0]
    raise DataError(
        "must be a list of objects, or an object with one list in it.",
        place=Place(path),
        way_out="A file with one object a line has the ending .jsonl.",
    )


def _excerpt(text: str, position: int) -> str:
    return repr(text[max(0, position - 20) : position + 20])


def _row(value: Any, number: int, place: Place) -> Row:
    if not isinstance(value, Mapping):
        where = "" if place.line else f"row {number}: "
        found = json.dumps(value, ensure_ascii=False)[:40]
        raise DataError(f"{where}must be an object with named fields and is {found}.", place=place)
    return Row(value, number, place)


def _csv(path: Path, delimiter: str = ",") -> Iterator[Row]:
    previous = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield from _delimited(path, delimiter)
    finally:
        csv.field_size_limit(previous)


def _delimited(path: Path, delimiter: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(_decoded(path), newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    number, line = 0, 1
    try:
        for cells in reader:
            if cells and header is None:
                header = _header(cells, Place(path, line))
            elif cells and header is not None:
                number += 1
                yield Row(_named(header, cells, path, line), number, Place(path, line))
            line = reader.line_num + 1
    except csv.Error as fault:
        raise DataError(
            f"not {path.suffix[1:]}: {fault}.",
            place=Place(path, line),
            way_out="Text with quotes or line breaks must stand in double quotes, quotes in it doubled.",
        ) from fault


def _header(cells: list[str], place: Place) -> list[str]:
    twice = [cell for cell in cells if cells.count(cell) > 1]
    if twice:
        raise DataError(
            f"two columns are called {twice[0]!r}.", place=place, way_out="Rename one or remove it."
        )
    other = next((mark for mark in (";", "\t", "|") if len(cells) == 1 and mark in cells[0]), None)
    if other:
        raise DataError(
            f"the header is one column, {cells[0]!r}: its names are separated by {other!r}.",
            place=place,
            way_out="Give the file the ending .tsv." if other == "\t" else "Save it separated by commas.",
        )
    return cells


def _named(header: list[str], cells: list[str], path: Path, line: int) -> dict[str, str]:
    if len(cells) != len(header):
        raise DataError(
            f"has {len(cells)} fields where the header has {len(header)}: {', '.join(header)}.",
            place=Place(path, line),
            way_out="Put text that contains the separator in double quotes.",
        )
    return dict(zip(header, cells, strict=True))


def _tsv(path: Path) -> Iterator[Row]:
    return _csv(path, "\t")


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as fault:
        raise DataError(
            f"not a parquet file: {str(fault).splitlines()[0]}",
            place=Place(path),
            way_out="Write it again; a download may have been cut short.",
        ) from fault
    for number, values in enumerate(table.to_pylist(), 1):
        yield Row(values, number, Place(path))


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
}
