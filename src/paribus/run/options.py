"""How a study is run: how many at a time, what again, which of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paribus.errors import StudyError, nearest
from paribus.plan.trial import Job
from paribus.worker import child

RETRYABLE = ("killed", "crashed", "out_of_memory", "unsupported", "diverged")


@dataclass(frozen=True)
class Options:
    """How to run: `retry` names outcomes to run again, `only` the beginnings of trial ids.

    `accept_change` goes on although a fixed value changed under results; `scratch` is where kept weights go.
    """

    max_workers: int | None = None
    retry: frozenset[str] = frozenset()
    only: tuple[str, ...] = ()
    accept_change: bool = False
    scratch: Path | None = None
    retries: Mapping[str, int] = field(default_factory=lambda: {"killed": 2, "crashed": 0})
    body: str = child.PERFORM
    preload: tuple[str, ...] = child.PRELOAD

    @staticmethod
    def parse(
        max_workers: int | None = None, retry: str = "", only: str = "", *, accept_change: bool = False
    ) -> Options:
        """Read the words of the command line; raises StudyError for an outcome that cannot be retried."""
        wanted = [word.strip() for word in retry.split(",") if word.strip()]
        for word in wanted:
            if word not in RETRYABLE:
                raise StudyError(f"--retry {word}: no such outcome", way_out=nearest(word, RETRYABLE))
        chosen = tuple(word.strip().lower() for word in only.split(",") if word.strip())
        return Options(max_workers, frozenset(wanted), chosen, accept_change)


def selected(jobs: Iterable[Job], only: Sequence[str]) -> list[Job]:
    """Return the jobs whose id begins with one of `only`, or all; raises StudyError where one names none."""
    jobs = list(jobs)
    for start in only:
        if not any(job.trial_id.startswith(start) for job in jobs):
            ids = [job.trial_id for job in jobs]
            raise StudyError(f"--only {start}: no trial's id begins so", way_out=nearest(start, ids))
    return [job for job in jobs if not only or job.trial_id.startswith(tuple(only))]
