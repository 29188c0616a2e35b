"""Scores that a study asks for and trained trials lack: found, and computed without training again.

A task's score needs the trained weights. Where a study kept them they are loaded and scored; where it did
not, only training again gives them, which `paribus run` does and `paribus score` never.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paribus.plan.trial import Job
from paribus.record.store import Store

RESCORE: Final = "paribus.worker.rescore:perform"


@dataclass(frozen=True)
class Lacking:
    """Finished trials without a score that is asked for: those whose weights are `kept`, and the rest.

    The rest also holds trials that lack a held-out score, which is read along the training.
    """

    kept: tuple[Job, ...]
    gone: tuple[Job, ...]


def lacking(jobs: Iterable[Job], store: Store, scratch: Path) -> Lacking:
    """Return the finished trials that lack a score; kept weights are looked for in `scratch`."""
    kept, gone = [], []
    for job in jobs:
        result = store.result(job.trial_id)
        finished = result is not None and result.result.outcome == "finished"
        if finished and not all(store.score(job.trial_id, score_id) for score_id in job.score_ids):
            (kept if without_training(job, store, scratch) else gone).append(job)
    return Lacking(tuple(kept), tuple(gone))


def without_training(job: Job, store: Store, scratch: Path) -> bool:
    """Say whether all that a trial lacks are scores of tasks, and its weights at the end are kept."""
    result = store.result(job.trial_id)
    if result is None or result.result.outcome != "finished":
        return False
    if not (scratch / job.trial_id / "last").is_dir():
        return False
    return all(store.score(job.trial_id, job.trial.score_id(setting)) for setting in job.scores)
