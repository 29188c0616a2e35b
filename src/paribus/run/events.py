"""What a running study reports: one event a change, each with where the whole study stands."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paribus.plan.trial import Job


@dataclass(frozen=True)
class Tally:
    """Where a study stands. `seconds_left` is absent until it is known how long a trial takes."""

    planned: int
    done: int
    running: int
    outcomes: Mapping[str, int]
    seconds_left: float | None

    @property
    def left(self) -> int:
        return self.planned - self.done


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    `loading`: workers get their libraries ready. `started`, `progress`, `finished`: of a trial, with its
    attempt. `retried`: an attempt failed and another follows; `outcome` says how it failed. `waiting`: the
    trials left are in the hands of another supervisor. `problem`: a damaged file was set aside; `message`
    names it. `look`: an adaptive study goes on or ends; `message` says where it stands.
    """

    kind: Literal["loading", "started", "progress", "finished", "retried", "waiting", "problem", "look"]
    tally: Tally
    job: Job | None = None
    attempt: int | None = None
    outcome: str | None = None
    phase: str | None = None
    step: int = 0
    steps: int = 0
    loss: float | None = None
    seconds: float | None = None
    message: str = ""


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Summary:
    """How a run ended. `started` counts attempts of this run, `unsettled` names trials without an outcome."""

    planned: int
    outcomes: Mapping[str, int]
    started: int
    unsettled: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """Return 0 where every trial has an outcome other than killed or crashed, else 1; 130 if stopped."""
        if self.interrupted:
            return 130
        failed = self.outcomes.get("killed", 0) + self.outcomes.get("crashed", 0)
        return 1 if failed or self.unsettled else 0


@dataclass(frozen=True)
class Underway:
    """A running trial: when it began (monotonic seconds) and the share of its steps that is done."""

    job: Job
    began: float
    share: float


@dataclass
class Clock:
    """Learns how long trials take and says how long the rest will; repeats of one cell take alike."""

    workers: int
    _seconds: dict[str, list[float]] = field(default_factory=dict)

    def ended(self, job: Job, seconds: float) -> None:
        """Take note of one trial that ran to an end of its own."""
        self._seconds.setdefault(job.group, []).append(seconds)

    def left(self, waiting: Sequence[Job], running: Sequence[Underway]) -> float | None:
        """Estimate the seconds until all are done; None while nothing is known of how long a trial takes."""
        whole = [self._whole(one) for one in running]
        known = {**self._seconds}
        for one, seconds in zip(running, whole, strict=True):
            if seconds is not None:
                known.setdefault(one.job.group, [seconds])
        if not known or None in whole:
            return None
        now = time.monotonic()
        rest = [
            max(0.0, (seconds or 0.0) - (now - one.began))
            for one, seconds in zip(running, whole, strict=True)
        ]
        total = sum(rest) + sum(_expected(known, job) for job in waiting)
        return max(total / self.workers, max(rest, default=0.0))

    def _whole(self, one: Underway) -> float | None:
        """Estimate how long a running trial takes in all: as it goes, else like its repeats or the others."""
        if one.share >= 0.1:
            return (time.monotonic() - one.began) / one.share
        return _expected(self._seconds, one.job) if self._seconds else None


def _expected(known: Mapping[str, list[float]], job: Job) -> float:
    seconds = known.get(job.group) or [second for group in known.values() for second in group]
    return sum(seconds) / len(seconds)


def count(outcomes: Mapping[str, str]) -> dict[str, int]:
    """Count outcomes by name, the most frequent first."""
    return dict(Counter(outcomes.values()).most_common())
