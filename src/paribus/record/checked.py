"""Reading results with doubt: a file is sound, absent, or a named problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from paribus.plan.trial import Job
from paribus.record.files import recording
from paribus.record.result import SCHEMA, HeldoutScore, Score, TaskScore, TrialResult

Kind = TypeVar("Kind", Job, TrialResult, HeldoutScore, TaskScore)


@dataclass(frozen=True)
class Problem:
    """A file that is not what its name says; the next run sets it aside and runs the trial again."""

    trial_id: str
    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def problems(folder: Path) -> Iterator[Problem]:
    """Name every damaged or foreign file that a trial's folder holds under a published name."""
    result = read_result(folder)
    found: list[object] = [result, read_job(folder)]
    found += [read_score(path) for path in sorted(folder.glob("scores/*.json"))]
    if result is not None:
        found += [check_parquet(folder, path) for path in sorted(folder.glob("items/*.parquet"))]
        found += [check_parquet(folder, folder / "curves.parquet")]
    found += _missing(folder, found)
    yield from (one for one in found if isinstance(one, Problem))


def _missing(folder: Path, found: list[object]) -> Iterator[Problem]:
    """Name the tables that sound files speak of and that are not there."""
    for one in found:
        if isinstance(one, TrialResult) and one.result.outcome == "finished":
            table = folder / "curves.parquet"
        elif isinstance(one, Score):
            table = folder / "items" / f"{one.score_id}.parquet"
        else:
            continue
        if not table.exists():
            yield Problem(folder.name, table, "is missing")


def read_job(folder: Path) -> Job | Problem | None:
    """Read `trial.json` of a trial's folder."""
    return _own(_read(folder / "trial.json", Job), folder / "trial.json")


def read_result(folder: Path, trial_id: str | None = None) -> TrialResult | Problem | None:
    """Read `result.json` in a folder; it must be of the trial that names the folder, or of `trial_id`."""
    read = _read(folder / "result.json", TrialResult)
    if isinstance(read, TrialResult) and read.paribus != SCHEMA:
        reason = f"has schema {read.paribus}, and this version reads {SCHEMA}"
        return Problem(trial_id or folder.name, folder / "result.json", reason)
    return _own(read, folder / "result.json", trial_id)


def read_score(path: Path) -> Score | Problem | None:
    """Read a score file, held-out or of a task; it must be of the trial and the score that name it."""
    of_task = path.is_file() and b'"figures"' in path.read_bytes()
    trial_id = path.parents[1].name
    read: Score | Problem | None
    if of_task:
        read = _own(_read(path, TaskScore), path, trial_id)
    else:
        read = _own(_read(path, HeldoutScore), path, trial_id)
    if isinstance(read, Score) and read.score_id != path.stem:
        return Problem(read.trial_id, path, f"belongs to score {read.score_id}")
    return read


def check_parquet(folder: Path, path: Path) -> Problem | None:
    """Find a truncated or foreign Parquet file by its first and last four bytes."""
    if not path.exists():
        return None
    with recording(path), path.open("rb") as file:
        head = file.read(4)
        file.seek(max(0, path.stat().st_size - 4))
        tail = file.read(4)
    return None if head == tail == b"PAR1" else Problem(folder.name, path, "is not a whole Parquet file")


def _own(read: Kind | Problem | None, path: Path, trial_id: str | None = None) -> Kind | Problem | None:
    """Refuse what belongs to another trial."""
    expected = trial_id or path.parent.name
    if read is None or isinstance(read, Problem):
        return read if read is None else Problem(expected, read.path, read.reason)
    return read if read.trial_id == expected else Problem(expected, path, f"belongs to trial {read.trial_id}")


def _read(path: Path, kind: type[Kind]) -> Kind | Problem | None:
    if not path.exists():
        return None
    if path.is_dir():
        return Problem("", path, "is a folder")
    try:
        with recording(path):
            return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}." for part in first["loc"]).rstrip(".")
        return Problem("", path, f"is damaged: {where}{': ' if where else ''}{first['msg']}")
