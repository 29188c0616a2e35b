"""The child process: one trial in, one result out, answered with files only.

A child is forked from a server that has imported everything heavy, so it starts in a fraction of a second
and shares no state with other trials. It holds its attempt's lease together with the supervisor. Its exit
code says how far it came; what it found stands in the attempt's folder and, if published, in the trial's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing import connection, parent_process, reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.errors import RecordError
from paribus.plan.trial import Job
from paribus.record import lease
from paribus.record.attempt import End, fenced, write_end
from paribus.record.files import fault_point, finite, out_of_space
from paribus.record.result import Outcome, OutOfMemory, TrialResult
from paribus.record.store import Store
from paribus.worker.crash import crash, without_paths

if TYPE_CHECKING:
    from paribus.worker.performed import Performed, Progress

PERFORM = "paribus.worker.perform:perform"
PRELOAD = ("torch", "transformers", "peft", "pyarrow.parquet", "paribus.worker.perform")

PUBLISHED, CRASHED, FENCED, UNRECORDED = 0, 1, 3, 74
"""Exit codes: all is published; the error stands in the attempt; a later attempt stands; the disk refused."""


@dataclass(frozen=True)
class Order:
    """What a child gets: the job's file, its attempt, an environment, and where it may look and write.

    `base` is the study's folder, `scratch` a folder outside the results, `body` the function that trains and
    scores, as `module:name`, `preload` the modules that must be there before the child starts.
    """

    job: Path
    attempt: Path
    environment: dict[str, str]
    base: Path
    scratch: Path
    body: str = PERFORM
    preload: tuple[str, ...] = PRELOAD


class Handed:
    """An open file that a child receives together with its order."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.descriptor),)


def _received(duplicate: Any) -> Handed:
    return Handed(duplicate.detach())


def main(order: Order, lock: Handed) -> None:
    """Run one trial and exit; `lock` keeps the attempt's lease held for as long as this process lives."""
    _settle_down(order)
    fault_point("started", order.attempt)
    sys.exit(_attempt(order))


def ready(preload: tuple[str, ...], answer: connection.Connection) -> None:
    """Say what keeps a child from starting: an empty text, or the error of the first module not there."""
    with contextlib.suppress(BrokenPipeError):  # whoever asked is gone
        answer.send(_missing(preload))


def _settle_down(order: Order) -> None:
    """Become a process of its own: its signals, its environment, its log, an end with its supervisor."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the server blocks it
    os.environ.clear()
    os.environ.update(order.environment)
    log = os.open(order.attempt / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    faulthandler.enable()
    threading.Thread(target=_end_with_supervisor, daemon=True).start()
    threading.Thread(target=_beat, args=(order.attempt / "heartbeat",), daemon=True).start()


def _end_with_supervisor() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(UNRECORDED)


def _beat(path: Path) -> None:
    """Bump the counter that observers on other hosts watch."""
    counter = 0
    while True:
        try:
            path.write_text(str(counter))
        except OSError as error:
            print(f"the heartbeat could not be written: {error}", file=sys.stderr)
        time.sleep(lease.BEAT_SECONDS)
        counter += 1


def _attempt(order: Order) -> int:
    """Perform the job, publish what came of it, and return the exit code."""
    if fenced(order.attempt):
        return FENCED
    progress = ProgressLog(order.attempt / "progress.jsonl")
    try:
        job = Job.read(order.job)
        if missing := _missing(order.preload):
            raise ImportError(missing)
        performed = _function(order.body)(job, order.base, order.scratch, progress)
        return _publish(order, job, performed)
    except MemoryError:
        result = _result(order, OutOfMemory(phase=progress.phase))
        return _publish_result(Store(order.job.parents[1]), order, result)
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, RecordError) or out_of_space(error):
            return _unrecorded(order, error)
        return _crashed(order, error)


def _function(dotted: str) -> Callable[..., Performed]:
    module, name = dotted.split(":")
    return getattr(importlib.import_module(module), name)


def _missing(preload: tuple[str, ...]) -> str:
    """Return why the first absent module is absent; an empty text where all are there."""
    for name in preload:
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except ImportError as error:
                return f"importing {name} failed: {error}"
            return f"{name} was not loaded before the worker started"
    return ""


def _publish(order: Order, job: Job, performed: Performed) -> int:
    """Publish scores, curves and log, the result last; then say in the attempt whether it stands."""
    store = Store(order.job.parents[1])
    _check_weights(store.result(job.trial_id), performed)
    for score in performed.scores:
        if not fenced(order.attempt):
            store.publish_score(score, performed.items.get(score.score_id))
    sys.stdout.flush()
    if not fenced(order.attempt):
        store.publish_curves(job.trial_id, performed.steps, without_paths(_log(order)).encode())
    result = _result(
        order,
        performed.outcome,
        resolved=finite(performed.resolved),
        counts=performed.counts,
        identity=performed.identity,
        cost=performed.cost,
        proof=finite(performed.proof),
        warnings=performed.warnings,
    )
    return _publish_result(store, order, result)


def _check_weights(recorded: TrialResult | None, performed: Performed) -> None:
    """Refuse scores for a recorded trial where the rerun that gave them ended at other weights."""
    if recorded is None or recorded.identity is None or performed.identity is None:
        return
    before, now = recorded.identity.final_weights_sha256, performed.identity.final_weights_sha256
    if before != now:
        raise RuntimeError(
            f"the rerun ended at weights {now[:12]}, the recorded trial at {before[:12]}: another machine or "
            "other library versions. Its scores are not those of the record; use another --results folder"
        )


def _result(order: Order, outcome: Outcome, **evidence: Any) -> TrialResult:
    held = lease.read(order.attempt)
    return TrialResult(
        trial_id=held.trial_id,
        attempt=held.attempt,
        machine_class=held.machine_class,
        provenance=held.provenance,
        result=outcome,
        **evidence,
    )


def _publish_result(store: Store, order: Order, result: TrialResult) -> int:
    """Publish a result unless a later attempt stands; a result that was there before stays."""
    if fenced(order.attempt):
        return _ended(order, result, published=False, code=FENCED)
    return _ended(order, result, published=store.publish_result(result) or store.outrank(result))


def _ended(order: Order, result: TrialResult, published: bool, code: int = PUBLISHED) -> int:
    _write_end(order, result.result, published, warnings=result.warnings)
    return code


def _write_end(order: Order, outcome: Outcome, published: bool, **more: Any) -> None:
    fault_point("before_outcome", order.attempt)
    number = int(order.attempt.name)
    end = End(attempt=number, outcome=outcome, published=published, ended=lease.now(), **more)
    write_end(order.attempt, end)


def _crashed(order: Order, error: BaseException, blameless: bool = False) -> int:
    """Leave the error in the attempt; whether it is tried again is the supervisor's to say."""
    _write_end(order, crash(error, _log(order)), published=False, blameless=blameless)
    return CRASHED


def _unrecorded(order: Order, error: BaseException) -> int:
    """A disk that refuses is nothing the trial did: leave the reason if it still fits, and stop."""
    try:
        _crashed(order, error, blameless=True)
    except RecordError as again:
        print(f"the outcome could not be recorded either: {again}", file=sys.stderr)
    return UNRECORDED


def _log(order: Order) -> str:
    return (order.attempt / "log.txt").read_text(encoding="utf-8", errors="replace")


class ProgressLog:
    """Writes where a trial stands as JSON lines, at most ten a second, every new phase and the last step."""

    def __init__(self, path: Path) -> None:
        self._path, self._last = path, 0.0
        self.phase = "start"
        self._write({"phase": "start", "step": 0, "steps": 0, "loss": None})

    def __call__(self, progress: Progress) -> None:
        due = time.monotonic() - self._last > 0.1
        if due or progress.phase != self.phase or progress.step == progress.steps:
            self.phase = progress.phase
            self._write(finite(asdict(progress)))

    def _write(self, line: dict[str, Any]) -> None:
        self._last = time.monotonic()
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"at": lease.now(), **line}) + "\n")
