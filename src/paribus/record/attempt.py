"""One try of one trial: opened under a lease, ended with an outcome, counted against the retries.

While an attempt's lease is held its holder alone may touch the trial: what dead attempts left is cleared,
what no longer counts is superseded, results are published.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from paribus.record import lease
from paribus.record.files import left_over, publish, sweep, to_json
from paribus.record.result import SCHEMA, Killed, Outcome, TrialResult
from paribus.record.rules import Rules, replaceable
from paribus.techniques.base import Settings

if TYPE_CHECKING:
    from paribus.plan.trial import Job
    from paribus.record.store import Store

Standing = Literal["settled", "busy", "given_up"]


class End(Settings):
    """What an attempt came to: `outcome.json`. `published` says whether the trial's files are from it.

    `outcome` is absent where the attempt found the trial settled and started nothing; `ended` is in UTC;
    `blameless` where it failed for a reason that is not the trial's, such as a full disk.
    """

    paribus: int = SCHEMA
    attempt: int
    outcome: Outcome | None
    published: bool
    ended: str
    blameless: bool = False
    warnings: tuple[str, ...] = ()


@dataclass
class Attempt:
    """A try that this process holds the lease of, through the open file `lock`."""

    store: Store
    job: Job
    number: int
    lock: int

    @property
    def folder(self) -> Path:
        return lease.numbered(attempts_of(self.store, self.job.trial_id), self.number)

    def end(self, outcome: Outcome | None, published: bool = False, **more: Any) -> None:
        """Write down what came of it, unless its worker has done so."""
        end = End(attempt=self.number, outcome=outcome, published=published, ended=lease.now(), **more)
        write_end(self.folder, end)

    def release(self) -> None:
        """Let go of the lease; it is free once the worker is gone too."""
        os.close(self.lock)


def attempts_of(store: Store, trial_id: str) -> Path:
    """Return the folder of a trial's attempts."""
    return store.folder(trial_id) / "attempts"


def write_end(folder: Path, end: End) -> bool:
    """Publish an attempt's end; False where it stands already."""
    written = publish(folder / "outcome.json", to_json(end))
    (folder / "heartbeat").unlink(missing_ok=True)
    return written


def read_end(folder: Path) -> End | None:
    """Read an attempt's end; None where there is none that can be read."""
    try:
        return End.model_validate_json((folder / "outcome.json").read_bytes())
    except (OSError, ValidationError):
        return None


def fenced(folder: Path) -> bool:
    """Say whether a later attempt stands, so that this one may publish nothing any more."""
    return lease.numbers(folder.parent)[-1:] != [int(folder.name)]


def open_attempt(store: Store, job: Job, rules: Rules, watch: lease.Watch) -> Attempt | Standing:
    """Open the next attempt of a trial, unless it is settled, given up, or somebody else is at it."""
    if store.settled(job, rules):
        return "settled"
    attempts = attempts_of(store, job.trial_id)
    last = lease.numbers(attempts)[-1:]
    before = watch.take_over(lease.numbered(attempts, last[0])) if last else None
    if last and before is None:
        return "busy"
    number = last[0] + 1 if last else 1
    try:
        _close(store, job.trial_id, last)
        lock = lease.raise_lease(attempts, _lease(job, number, rules, watch))
    finally:
        if before is not None:
            os.close(before)
    return "busy" if lock is None else _prepare(Attempt(store, job, number, lock), rules)


def _lease(job: Job, number: int, rules: Rules, watch: lease.Watch) -> lease.Lease:
    return lease.Lease(
        trial_id=job.trial_id,
        attempt=number,
        host=watch.host,
        supervisor_pid=os.getpid(),
        machine_class=rules.machine_class,
        provenance=rules.provenance,
        started=lease.now(),
    )


def _prepare(attempt: Attempt, rules: Rules) -> Attempt | Standing:
    """Bring the trial into order under the new lease, and go on only where there is still something to do."""
    store, trial_id = attempt.store, attempt.job.trial_id
    try:
        standing = _standing(attempt, rules)
        if standing is None:
            _clear(attempt)
            return attempt
        attempt.end(None)
        sweep(store.folder(trial_id))
    except BaseException:
        attempt.release()
        raise
    attempt.release()
    return standing


def _standing(attempt: Attempt, rules: Rules) -> Standing | None:
    """Settle what can be settled without running: nothing is left to do, or the retries are spent."""
    store, job = attempt.store, attempt.job
    if store.settled(job, rules):
        return "settled"
    result = store.result(job.trial_id)
    if result is not None and replaceable(result, rules):
        store.supersede(job.trial_id)
    failed = spent(store, job.trial_id, rules)
    if failed is None:
        return None
    return "settled" if publish_failure(store, job, failed, rules) else "given_up"


def _clear(attempt: Attempt) -> None:
    """Remove what dead attempts left half-done and write the job."""
    store, job, attempts = attempt.store, attempt.job, attempt.folder.parent
    for building in attempts.glob(f"{lease.BUILDING}*"):
        shutil.rmtree(building, ignore_errors=True)
    sweep(store.folder(job.trial_id))
    if store.result(job.trial_id) is None:
        store.clear_remains(job.trial_id)
    store.write_job(job)


def reconcile(store: Store, trial_id: str, watch: lease.Watch) -> None:
    """End a settled trial's last attempt, and tidy up after it, where all who could have done so died."""
    attempts = attempts_of(store, trial_id)
    last = lease.numbers(attempts)[-1:]
    folder = lease.numbered(attempts, last[0]) if last else None
    if folder is None or ((folder / "outcome.json").exists() and not left_over(store.folder(trial_id))):
        return
    lock = watch.take_over(folder)
    if lock is not None:
        _close(store, trial_id, last)
        sweep(store.folder(trial_id))
        os.close(lock)


def _close(store: Store, trial_id: str, attempts: list[int]) -> None:
    """End attempts that are over, under their lock: lost, or published by one that died before it said so."""
    result = store.result(trial_id)
    for number in attempts:
        folder = lease.numbered(attempts_of(store, trial_id), number)
        if not (folder / "outcome.json").exists():
            stands = result is not None and result.attempt == number
            outcome = result.result if result is not None and stands else Killed(cause="lost")
            write_end(folder, End(attempt=number, outcome=outcome, published=stands, ended=lease.now()))


def spent(store: Store, trial_id: str, rules: Rules) -> End | None:
    """Return the last failed attempt where a trial has used up its retries, else None."""
    attempts = attempts_of(store, trial_id)
    floor = max(store.superseded_attempt(trial_id), rules.forgiven.get(trial_id, 0))
    ends = [read_end(lease.numbered(attempts, n)) for n in lease.numbers(attempts) if n > floor]
    failed = [end for end in ends if end is not None and _costs_a_retry(end)]
    for kind, retries in rules.retries.items():
        of_kind = [end for end in failed if end.outcome is not None and end.outcome.outcome == kind]
        if len(of_kind) > retries:
            return of_kind[-1]
    return None


def _costs_a_retry(end: End) -> bool:
    """A trial that died with its supervisor, was stopped or met a full disk has failed at nothing."""
    stopped = isinstance(end.outcome, Killed) and end.outcome.cause != "killed"
    return not stopped and not end.blameless


def publish_failure(store: Store, job: Job, end: End, rules: Rules) -> bool:
    """Make a failed attempt the trial's result; False where the trial already has one."""
    if end.outcome is None:
        return False
    result = TrialResult(
        trial_id=job.trial_id,
        attempt=end.attempt,
        machine_class=rules.machine_class,
        provenance=rules.provenance,
        result=end.outcome,
        warnings=end.warnings,
    )
    store.write_job(job)
    return store.publish_result(result)
