"""Documents of a benchmark from a user's own files, under the names that its lm-eval task reads.

A split is looked for in the folder as `SPLIT`, and where the data set has several parts as `PART/SPLIT`,
`SPLIT/PART`, `SPLIT/PART_SPLIT` or `PART_SPLIT`; endings are jsonl, json, csv, tsv, parquet, or those of the
hub's parquet shards, and text may be compressed by gzip. One file in place of a folder is the split that is
scored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from paribus.errors import DataError, Place, listed, nearest
from paribus.score.original_forms import MMLU_PATHS, Config, renamed, rows_of
from paribus.sources.files import columns_of
from paribus.sources.forms import Row

ENDINGS: Final = (
    ".jsonl",
    ".ndjson",
    ".json",
    ".csv",
    ".tsv",
    ".parquet",
    ".jsonl.gz",
    ".json.gz",
    ".csv.gz",
)
ALIASES: Final = {"validation": ("validation", "val", "valid"), "train": ("train", "training")}
"""Under which names, beside its own, the file of a split is found."""
TEMPLATES: Final = ("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix")


def evaluated(config: Config) -> str | None:
    """Name the split whose documents are scored."""
    return config.get("test_split") or config.get("validation_split")


def shots_from(config: Config) -> str | None:
    """Name the split that few-shot examples are drawn from; None where the YAML has them itself."""
    fewshot = config.get("fewshot_config") or {}
    if split := fewshot.get("split") or config.get("fewshot_split"):
        return split
    if fewshot.get("samples") is not None:
        return None
    return config.get("training_split") or config.get("validation_split") or config.get("test_split")


def fields(config: Config) -> tuple[str, ...]:
    """List the columns that the templates of a task read; none where Python code reads the documents."""
    import jinja2
    import jinja2.meta

    if config.get("process_docs") is not None:
        return ()
    found: dict[str, None] = {}
    for template in (config.get(name) for name in TEMPLATES):
        if not isinstance(template, str) or template.startswith("/"):
            continue  # a list of choices, or a function by its place
        if "{" in template:
            parsed = jinja2.Environment().parse(template)
            found |= dict.fromkeys(sorted(jinja2.meta.find_undeclared_variables(parsed)))
        elif template is not config.get("description") and re.fullmatch(r"\w[\w -]*", template):
            found[template] = None
    return tuple(found)


def wanted(config: Config) -> str:
    """Say which files and columns a folder needs in place of the hub's data set."""
    split, shots = evaluated(config), shots_from(config)
    part = config.get("dataset_name")
    among = f" (or {part}/{split}.jsonl, {split}/{part}.jsonl; also json, csv, parquet)" if part else ""
    files = f"{split}.jsonl{among}"
    if shots and shots != split:
        files += f" and, for few-shot examples, {shots}.jsonl"
    columns = listed(fields(config)) or f"of the hub's {config.get('dataset_path')!r}"
    return f"Name local files in the hub's place: data: FOLDER. It needs {files}, with the columns {columns}."


class LocalData:
    """A file or folder in the hub's place; `shots` is how many few-shot examples the study asks for.

    None leaves their number to the task. `places` has, by task, the file and line of each evaluated document.
    """

    def __init__(self, place: Path, shots: int | None) -> None:
        if not place.exists():
            raise DataError(
                f"data: there is no file or folder {str(place)!r}.",
                way_out="Correct the path; relative paths start at the study.",
            )
        self.place, self.shots = place, shots
        self.places: dict[str, list[Place]] = {}
        self._read: dict[Path, list[Row]] = {}
        self._parts: dict[Path, str | None] = {}

    def dataset(self, config: Config) -> Any:
        """Return a task's documents as a `DatasetDict` with every split that its YAML names.

        A split that is not needed and has no file is empty. Raises DataError.
        """
        import datasets

        split, source = evaluated(config), shots_from(config)
        shots = config.get("num_fewshot") if self.shots is None else self.shots
        rows = {split: self._rows(config, split)} if split else {}
        if source and source not in rows and shots:
            rows[source] = self._rows(config, source)
        self.places[str(config["task"])] = [row.place for row in rows[split]] if split else []
        made = {name: _dataset(found, config) for name, found in rows.items() if name}
        named = (source, *(config.get(f"{kind}_split") for kind in ("training", "validation", "test")))
        for name in named if split else ():
            if name and name not in made:
                made[name] = made[str(split)].select([])
        return datasets.DatasetDict(list(made.items()))

    def _rows(self, config: Config, split: str) -> list[Row]:
        part = str(config["dataset_name"]) if config.get("dataset_name") else None
        rows: list[Row] = []
        for file in self._files(config, split):
            if file not in self._read:
                self._read[file] = rows_of(file, headerless=config.get("dataset_path") in MMLU_PATHS)
            rows += self._of_part(self._read[file], part, file)
        needed = fields(config)
        return [_whole(replace(row, values=renamed(row, config)), needed) for row in rows]

    def _of_part(self, rows: list[Row], part: str | None, file: Path) -> list[Row]:
        """Take the rows of one part of a data set: all, or those whose column `subject` names it."""
        inside = file.relative_to(self.place) if self.place.is_dir() else Path(file.name)
        parts = {str(row.values["subject"]) for row in rows if "subject" in row.values}
        if part and parts and part not in str(inside):
            if part not in parts:
                raise DataError(
                    f"no row has the subject {part!r}.", place=Place(file), way_out=nearest(part, parts)
                )
            return [row for row in rows if str(row.values.get("subject")) == part]
        if self._parts.setdefault(file, part) != part:
            raise DataError(
                f"the parts {self._parts[file]!r} and {part!r} would both be read from here whole.",
                place=Place(file),
                way_out=f"Name each part's file by its part, or add a column 'subject' that says {part!r}.",
            )
        return rows

    def _files(self, config: Config, split: str) -> list[Path]:
        if self.place.is_file():
            if split == evaluated(config):
                return [self.place]
            raise DataError(
                f"the task {config['task']!r} draws few-shot examples from its split {split!r}, and data is "
                f"one file, {str(self.place)!r}.",
                way_out=f"Name a folder that holds {evaluated(config)}.jsonl and {split}.jsonl, or set "
                "num_fewshot: 0.",
            )
        stems = _stems(split, config.get("dataset_name"))
        for stem in stems:
            found = [file for ending in ENDINGS if (file := self.place / f"{stem}{ending}").is_file()]
            if len(found) > 1:
                raise DataError(
                    f"the split {split!r} is there twice: {', '.join(file.name for file in found)}.",
                    place=Place(self.place),
                    way_out="Remove all but one.",
                )
            if found or (found := sorted(self.place.glob(f"{stem}-?????-of-?????.parquet"))):
                return found
        tried = ", ".join(f"{stem}.jsonl" for stem in stems[: len(stems) // len(_names(split))])
        inside = [file.relative_to(self.place).as_posix() for file in self.place.rglob("*") if file.is_file()]
        raise DataError(
            f"the task {config['task']!r} reads the split {split!r}, which {str(self.place)!r} lacks.",
            way_out=f"Add one of {tried} (or json, csv, parquet). The folder holds: {listed(inside)}.",
        )


def _names(split: str) -> tuple[str, ...]:
    return ALIASES.get(split, (split,))


def _stems(split: str, part: str | None) -> list[str]:
    stems = []
    for name in _names(split):
        if part:
            stems += [f"{part}/{name}", f"{name}/{part}", f"{name}/{part}_{name}", f"{part}_{name}"]
        stems += [name, f"data/{name}"]
    return stems


def _dataset(rows: list[Row], config: Config) -> Any:
    import datasets
    import pyarrow

    columns = {name: [row.values.get(name) for row in rows] for name in columns_of(rows)}
    for name, values in columns.items():
        try:
            pyarrow.array(values)
        except pyarrow.ArrowException as fault:
            raise DataError(
                f"the column {name!r} of the task {config['task']!r} holds values of several kinds: {fault}.",
                place=Place(rows[0].place.path),
                way_out="Write all of them as one kind, for example all as text.",
            ) from fault
    return datasets.Dataset.from_dict(columns)


def _whole(row: Row, needed: Iterable[str]) -> Row:
    """Return a row that has all fields; raises DataError for the first that is missing."""
    for name in needed:
        if name not in row.values:
            raise DataError(
                f"{row.where}there is no field {name!r}, which the task reads.",
                place=row.place,
                way_out=f"Add or rename it. {nearest(name, map(str, row.values))}",
            )
    return row
