"""What a worker's end means: published, failed for a reason, or nothing the trial is to blame for."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from paribus.errors import RecordError
from paribus.record.attempt import Attempt, End, publish_failure, read_end, spent
from paribus.record.files import sweep
from paribus.record.result import Crashed, Killed, Outcome
from paribus.record.rules import Rules
from paribus.run.engine.local import Worker
from paribus.worker import child
from paribus.worker.crash import tail

VMSTAT = Path("/proc/vmstat")
SHORT_OF_MEMORY = (
    "the kernel ended a process for lack of memory while this trial ran; fewer --max-workers need less"
)


def take_in(attempt: Attempt, code: int, rules: Rules, memory_kills_before: int) -> End | None:
    """Settle an attempt whose worker has ended with an exit code, and return how it ended.

    Where the retries are spent its failure becomes the trial's result. Raises RecordError where the disk
    refused the worker's result: then nothing further can be recorded either.
    """
    short = code == -signal.SIGKILL and memory_kills() > memory_kills_before
    warnings = (SHORT_OF_MEMORY,) if short else ()
    end_attempt(attempt, _outcome(attempt, code), blameless=code == child.UNRECORDED, warnings=warnings)
    end = read_end(attempt.folder)
    if code == child.UNRECORDED:
        _refuse(attempt, end)
    failed = spent(attempt.store, attempt.job.trial_id, rules)
    if failed is not None and not attempt.store.settled(attempt.job, rules):
        publish_failure(attempt.store, attempt.job, failed, rules)
    return end


def end_attempt(attempt: Attempt, otherwise: Outcome, **more: Any) -> None:
    """End an attempt whose worker is gone: as it said, as its published result says, or `otherwise`."""
    result = attempt.store.result(attempt.job.trial_id)
    if result is not None and result.attempt == attempt.number:
        attempt.end(result.result, published=True)
    else:
        attempt.end(otherwise, **more)
    sweep(attempt.store.folder(attempt.job.trial_id))


def memory_kills() -> int:
    """Count the processes this kernel has ended for lack of memory; 0 where it does not say."""
    if not VMSTAT.exists():
        return 0
    counts = dict(line.split() for line in VMSTAT.read_text().splitlines())
    return int(counts.get("oom_kill", 0))


def _outcome(attempt: Attempt, code: int) -> Outcome:
    """Say what an exit code means where the worker could not say it itself; a negative one is a signal."""
    if code < 0:
        return Killed(signal=-code)
    if code == Worker.SERVER_GONE:
        return Killed()
    log = attempt.folder / "log.txt"
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    error = f"the worker ended with exit code {code} before it could say why"
    return Crashed(error=error, where="worker", log_tail=tail(text))


def _refuse(attempt: Attempt, end: End | None) -> None:
    said = end.outcome.error if end and isinstance(end.outcome, Crashed) else "the disk refused its result"
    raise RecordError(
        f"trial {attempt.job.trial_id}: {said}",
        way_out="Free some space, in the results folder or in the cache folder (PARIBUS_CACHE), and run the "
        "same command again; what is recorded stays.",
    )
