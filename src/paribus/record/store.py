"""A study's results on disk: read whole or named as damaged, published once, never overwritten."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.errors import Place, RecordError
from paribus.plan.trial import Job, identity
from paribus.record.checked import Problem, problems, read_job, read_result, read_score
from paribus.record.files import publish, recording, replace, sweep, to_json
from paribus.record.lease import numbers
from paribus.record.result import HeldoutScore, Score, TaskScore, TrialResult
from paribus.record.rules import Rules, replaceable

if TYPE_CHECKING:
    import pandas as pd

TRIAL_ID = re.compile(r"[0-9a-f]{16}")
PARTS = ("result.json", "curves.parquet", "log.txt", "scores", "items")
"""What a trial publishes; `result.json` comes last."""


@dataclass(frozen=True)
class Recorded:
    """A trial with its outcome and every score that is recorded of it."""

    job: Job
    result: TrialResult
    scores: tuple[HeldoutScore, ...]
    tasks: tuple[TaskScore, ...] = ()


class Store:
    """The folder of one study's results, `results/<study>`. Reading changes nothing in it."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def folder(self, trial_id: str) -> Path:
        """Return the folder of a trial."""
        return self.root / trial_id

    def prepare(self) -> None:
        """Make the folder and try to write in it; raises RecordError where that cannot be."""
        with recording(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            probe = self.root / f".tmp-{os.getpid()}-writable"
            probe.write_bytes(b"?")
            probe.unlink()
            sweep(self.root / "provenance", older_than=3600)  # where no lease says who else may be writing

    def check(self) -> None:
        """Raise RecordError where a file stands in the place of the folder or of one above it."""
        for place in (self.root, *self.root.parents):
            if os.path.lexists(place) and not place.is_dir():
                raise RecordError(
                    "results are kept in a folder, and this is none",
                    place=Place(place),
                    way_out="Move it away, or choose another folder with --results.",
                )

    # Reading

    def trial_ids(self) -> list[str]:
        """Return the ids of all trials that have a folder."""
        if not self.root.is_dir():
            return []
        return sorted(entry.name for entry in os.scandir(self.root) if TRIAL_ID.fullmatch(entry.name))

    def recorded(self) -> dict[str, Recorded]:
        """Return every trial with a sound result, by id; what is damaged stands in `problems`."""
        found = {trial_id: self._recorded(trial_id) for trial_id in self.trial_ids()}
        return {trial_id: one for trial_id, one in found.items() if one is not None}

    def results(self) -> dict[str, TrialResult]:
        """Return every sound result, by trial id."""
        found = {trial_id: self.result(trial_id) for trial_id in self.trial_ids()}
        return {trial_id: one for trial_id, one in found.items() if one is not None}

    def result(self, trial_id: str) -> TrialResult | None:
        """Return a trial's result; None where there is none or it is damaged."""
        read = read_result(self.folder(trial_id))
        return read if isinstance(read, TrialResult) else None

    def score(self, trial_id: str, score_id: str) -> Score | None:
        """Return one score of a trial; None where there is none or it is damaged."""
        read = read_score(self.folder(trial_id) / "scores" / f"{score_id}.json")
        return read if isinstance(read, Score) else None

    def provenance(self, name: str) -> dict[str, Any] | None:
        """Return what results were made by, as they name it; None where that is missing or damaged."""
        try:
            record = json.loads((self.root / "provenance" / f"{name}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def steps(self, trial_id: str) -> pd.DataFrame:
        """Return the training curve, a row an optimizer step; raises RecordError where it cannot be read."""
        return _read_parquet(self.folder(trial_id) / "curves.parquet")

    def items(self, trial_id: str, score_id: str) -> pd.DataFrame:
        """Return a row a scored example: step, split, group, example_id, loss_sum, targets, correct."""
        return _read_parquet(self.folder(trial_id) / "items" / f"{score_id}.parquet")

    @property
    def problems(self) -> list[Problem]:
        """Name every damaged or foreign file among the results."""
        return [problem for trial_id in self.trial_ids() for problem in problems(self.folder(trial_id))]

    def settled(self, job: Job, rules: Rules) -> bool:
        """Say whether a trial needs no run: it has a result that counts here and every score asked for."""
        result = self.result(job.trial_id)
        if result is None or replaceable(result, rules):
            return False
        if result.result.outcome != "finished":
            return True
        return all(self.score(job.trial_id, score_id) for score_id in job.score_ids)

    def superseded_attempt(self, trial_id: str) -> int:
        """Return the number of the latest attempt whose result was superseded; 0 where none was."""
        read = [read_result(folder, trial_id) for folder in self.folder(trial_id).glob("superseded/*")]
        return max((one.attempt or 0 for one in read if isinstance(one, TrialResult)), default=0)

    def _recorded(self, trial_id: str) -> Recorded | None:
        folder = self.folder(trial_id)
        result, job = self.result(trial_id), read_job(folder)
        if result is None or not isinstance(job, Job):
            return None
        read = [read_score(path) for path in sorted(folder.glob("scores/*.json"))]
        heldout = tuple(one for one in read if isinstance(one, HeldoutScore))
        return Recorded(job, result, heldout, tuple(one for one in read if isinstance(one, TaskScore)))

    # Writing; inside a trial only the holder of its lease does so, except for outcomes that need no attempt

    def write_job(self, job: Job) -> None:
        """Write `trial.json`, unless it says the same already."""
        path, data = self.folder(job.trial_id) / "trial.json", to_json(job)
        if not path.exists() or path.read_bytes() != data:
            replace(path, data)

    def write_provenance(self, record: dict[str, Any]) -> str:
        """Keep a provenance record once and return its name."""
        name = identity(record)
        publish(self.root / "provenance" / f"{name}.json", to_json(record))
        return name

    def publish_result(self, result: TrialResult) -> bool:
        """Give a trial its result; False where it has one already."""
        return publish(self.folder(result.trial_id) / "result.json", to_json(result))

    def outrank(self, result: TrialResult) -> bool:
        """Publish over a result that speaks of other machines only; False where the recorded one counts."""
        recorded = self.result(result.trial_id)
        if recorded is not None and recorded.counts_on(result.machine_class):
            return False
        self._move(result.trial_id, ("result.json",), "superseded")
        return self.publish_result(result)

    def publish_score(self, score: Score, items: Iterable[dict[str, Any]] | None) -> bool:
        """Publish a score and before it the rows it was summed from; False where it stands already."""
        folder = self.folder(score.trial_id)
        if items is not None:
            publish(folder / "items" / f"{score.score_id}.parquet", to_parquet(items))
        return publish(folder / "scores" / f"{score.score_id}.json", to_json(score))

    def publish_curves(self, trial_id: str, steps: Iterable[dict[str, Any]], log: bytes) -> None:
        """Publish the training curve and the worker's log, unless the trial has them."""
        if rows := list(steps):
            publish(self.folder(trial_id) / "curves.parquet", to_parquet(rows))
        publish(self.folder(trial_id) / "log.txt", log)

    def supersede(self, trial_id: str) -> None:
        """Move a trial's published files to `superseded/NNNN/`, so that it can be run again."""
        self._move(trial_id, PARTS, "superseded")

    def clear_remains(self, trial_id: str) -> None:
        """Remove the scores and curves of an attempt that died before its result."""
        folder = self.folder(trial_id)
        remains = [
            *folder.glob("scores/*"),
            *folder.glob("items/*"),
            folder / "curves.parquet",
            folder / "log.txt",
        ]
        for path in remains:
            path.unlink(missing_ok=True)

    def set_aside(self, problem: Problem) -> Path:
        """Move a damaged file to the trial's `set_aside/NNNN/`, with what cannot stand without it."""
        folder = self.folder(problem.trial_id)
        name = problem.path.relative_to(folder).as_posix()
        if name in ("result.json", "curves.parquet"):
            return self._move(problem.trial_id, PARTS, "set_aside")
        if name == "trial.json":
            return self._move(problem.trial_id, ("trial.json",), "set_aside")
        score = f"scores/{problem.path.stem}.json", f"items/{problem.path.stem}.parquet"
        return self._move(problem.trial_id, score, "set_aside")

    def _move(self, trial_id: str, names: Iterable[str], under: str) -> Path:
        folder = self.folder(trial_id)
        with recording(folder):
            place = _new_folder(folder / under)
            for name in names:
                (place / name).parent.mkdir(exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    (folder / name).rename(place / name)
        return place


def _new_folder(parent: Path) -> Path:
    """Make the next of the numbered folders, whoever else makes one."""
    number = 1 + max(numbers(parent), default=0)
    while True:
        try:
            (place := parent / f"{number:04d}").mkdir(parents=True)
            return place
        except FileExistsError:
            number += 1


def to_parquet(rows: Iterable[dict[str, Any]]) -> bytes:
    """Write rows as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), buffer)
    return buffer.getvalue()


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        way_out = "Run the study again: what is damaged is set aside and made anew."
        raise RecordError(f"cannot be read: {error}", place=Place(path), way_out=way_out) from error
