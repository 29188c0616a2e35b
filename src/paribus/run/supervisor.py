"""Runs what is missing of a study: a worker a slot, failures recorded, retried where that can help.

The supervisor decides nothing from memory: before each start it asks the record, under the trial's lease, whether
there is still something to do. So it can die at any moment, and others can run beside it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.errors import RecordError
from paribus.machine import Machine, cache_folder
from paribus.plan.trial import Job
from paribus.record import lease
from paribus.record.attempt import (
    Attempt,
    Rules,
    attempts_of,
    open_attempt,
    publish_failure,
    read_end,
    reconcile,
    spent,
)
from paribus.record.provenance import provenance
from paribus.record.result import Crashed, Killed, Outcome, TrialResult, Unsupported
from paribus.record.store import Store
from paribus.run.devices import Slot, slots, thread_environment
from paribus.run.engine.local import Local, Worker
from paribus.run.events import Clock, Event, Listener, Summary, Tally, count
from paribus.run.interrupts import Interrupts
from paribus.run.options import Options, selected
from paribus.run.pending import unsettled
from paribus.run.progress import ProgressReader
from paribus.techniques.base import Settings
from paribus.worker import child

if TYPE_CHECKING:
    from paribus.plan.design import Plan

LOOK_SECONDS = 0.25
"""How often running trials' progress, and trials in other hands, are looked at."""


def run(
    plan: Plan,
    store: Store,
    machine: Machine,
    options: Options | None = None,
    listener: Listener | None = None,
) -> Summary:
    """Run every planned trial that has no outcome yet and say how it ended.

    Raises RecordError where results cannot be written. Ctrl-C and SIGTERM end the workers within two seconds and
    return a summary that says `interrupted`; nothing is lost, and the same call goes on from there.
    """
    from paribus.plan.lock import write_lock
    from paribus.plan.preflight import obstacles

    options = options or Options()
    jobs = selected(plan.jobs, options.only)
    store.prepare()
    write_lock(plan, store.root)
    return run_jobs(jobs, plan.study.folder, store, machine, options, listener, obstacles(plan, machine))


def run_jobs(
    jobs: Sequence[Job],
    base: Path,
    store: Store,
    machine: Machine,
    options: Options,
    listener: Listener | None = None,
    hindered: Mapping[str, Settings] | None = None,
) -> Summary:
    """Run jobs of any origin; `hindered` are those that cannot run here, with the reason that is recorded."""
    return _Run(jobs, base, store, machine, options, listener, hindered or {}).run()


@dataclass
class _Running:
    """A trial in a worker's hands."""

    attempt: Attempt
    worker: Worker
    slot: Slot
    began: float
    reader: ProgressReader


class _Run:
    def __init__(
        self,
        jobs: Sequence[Job],
        base: Path,
        store: Store,
        machine: Machine,
        options: Options,
        listener: Listener | None,
        hindered: Mapping[str, Settings],
    ) -> None:
        self.jobs, self.base, self.store, self.options = list(jobs), base.resolve(), store, options
        self.listener, self.hindered, self.began = listener, hindered, time.monotonic()
        self.slots = list(slots(machine, options.max_workers))
        self.environment = thread_environment(machine, len(self.slots))
        self.engine = Local(options.preload, self.environment)
        self.machine, self.watch, self.clock = machine, lease.Watch(), Clock(len(self.slots))
        self.running: dict[str, _Running] = {}
        self.done: dict[str, str] = {}
        self.problems: list[str] = []
        self.given_up: list[str] = []
        self.started, self.waiting, self.not_before = 0, False, 0.0
        self.scratch = options.scratch or _scratch(store)

    def run(self) -> Summary:
        self.store.prepare()
        self._set_aside_damage()
        self.rules = self._rules()
        self._record_obstacles()
        self.todo = self._sort_out()
        with Interrupts() as interrupts:
            try:
                if self.todo and self._warm(interrupts):
                    self._loop(interrupts)
            except BaseException:
                self._stop()
                raise
            if interrupts.happened:
                self._stop()
            return self._summary(interrupts.happened)

    # Before the first start

    def _set_aside_damage(self) -> None:
        chosen = {job.trial_id: job for job in self.jobs}
        for problem in self.store.problems:
            if problem.trial_id in chosen and problem.path.exists():
                place = self.store.set_aside(problem)
                self.problems.append(str(problem))
                self._tell("problem", chosen[problem.trial_id], message=f"{problem}; set aside in {place}")

    def _rules(self) -> Rules:
        results = self.store.results()
        again = {
            job.trial_id: results[job.trial_id].attempt
            for job in self.jobs
            if job.trial_id in results and results[job.trial_id].result.outcome in self.options.retry
        }
        told = {**os.environ, **self.environment, **self.slots[0].environment} if self.slots else {}
        return Rules(
            machine_class=self.machine.machine_class,
            provenance=self.store.write_provenance(provenance(self.machine, told)),
            retries=self.options.retries,
            again=again,
            forgiven=self._forgiven() if "crashed" in self.options.retry else {},
        )

    def _forgiven(self) -> dict[str, int]:
        """With --retry, failures up to now count against no retry."""
        last = {job.trial_id: lease.numbers(attempts_of(self.store, job.trial_id))[-1:] for job in self.jobs}
        return {trial_id: numbers[0] for trial_id, numbers in last.items() if numbers}

    def _record_obstacles(self) -> None:
        """Record what cannot run here, without a process: it is an outcome on this class of machine."""
        for job in self.jobs:
            if job.trial_id in self.hindered and not self.store.settled(job, self.rules):
                result = TrialResult(
                    trial_id=job.trial_id,
                    attempt=None,
                    machine_class=self.rules.machine_class,
                    provenance=self.rules.provenance,
                    result=Unsupported(**self.hindered[job.trial_id].model_dump()),
                )
                self.store.write_job(job)
                if not self.store.publish_result(result):
                    self.store.outrank(result)

    def _sort_out(self) -> list[Job]:
        """Note what is settled, tidy up after the dead, and return what is left to do."""
        todo = unsettled(self.jobs, self.store, self.rules)
        left = {job.trial_id for job in todo}
        for job in self.jobs:
            if job.trial_id not in left:
                reconcile(self.store, job.trial_id, self.watch)
                self.store.write_job(job)
                self._note(job)
        return [job for job in todo if job.trial_id not in self.hindered]

    def _warm(self, interrupts: Interrupts) -> bool:
        self._tell("loading")
        return self.engine.warm_up(interrupts.wake)

    # The loop

    def _loop(self, interrupts: Interrupts) -> None:
        while (self.todo or self.running) and not interrupts.happened:
            self._fill()
            if self.todo or self.running:
                handles = [running.worker.sentinel for running in self.running.values()]
                connection.wait([*handles, interrupts.wake], LOOK_SECONDS)
            self._collect()
            self._report_progress()

    def _fill(self) -> None:
        """Give every free slot a trial, and look now and then at those in other hands."""
        if not self._free() or time.monotonic() < self.not_before:
            return
        for job in list(self.todo):
            if not (free := self._free()):
                return
            if job.trial_id not in self.running:
                self._try(job, free[0])
        self.not_before = time.monotonic() + LOOK_SECONDS
        waits = bool(self.todo) and not self.running
        if waits and not self.waiting:
            self._tell("waiting", message="the trials left are in the hands of another supervisor")
        self.waiting = waits

    def _try(self, job: Job, slot: Slot) -> None:
        opened = open_attempt(self.store, job, self.rules, self.watch)
        if isinstance(opened, Attempt):
            self._start(opened, slot)
        elif opened != "busy":
            self.todo.remove(job)
            if opened == "given_up":
                self.given_up.append(job.trial_id)
            self._note(job)
            self._tell("finished", job, outcome=self.done.get(job.trial_id))

    def _start(self, attempt: Attempt, slot: Slot) -> None:
        trial_id = attempt.job.trial_id
        scratch = self.scratch / trial_id
        scratch.mkdir(parents=True, exist_ok=True)
        order = child.Order(
            job=self.store.folder(trial_id).resolve() / "trial.json",
            attempt=attempt.folder.resolve(),
            environment={**self.engine.environment, **slot.environment},
            base=self.base,
            scratch=scratch,
            body=self.options.body,
            preload=self.options.preload,
        )
        try:
            worker = self.engine.start(order, attempt.lock)
        except BaseException:
            attempt.release()
            raise
        reader = ProgressReader(attempt.folder / "progress.jsonl")
        self.running[trial_id] = _Running(attempt, worker, slot, time.monotonic(), reader)
        self.started += 1
        self._tell("started", attempt.job, attempt=attempt.number)

    def _free(self) -> list[Slot]:
        taken = {running.slot.name for running in self.running.values()}
        return [slot for slot in self.slots if slot.name not in taken]

    def _collect(self) -> None:
        """Take in the workers that have ended."""
        if not self.running:
            return
        handles = {running.worker.sentinel: trial_id for trial_id, running in self.running.items()}
        for handle in connection.wait(list(handles), 0):
            self._take_in(self.running[handles[handle]])  # type: ignore[index]

    def _take_in(self, running: _Running) -> None:
        """Settle one ended attempt: published, or ended with its reason and perhaps tried again."""
        job, attempt = running.attempt.job, running.attempt
        seconds, code = time.monotonic() - running.began, running.worker.exit_code()
        try:
            end_attempt(attempt, self._outcome(attempt, code))
            self._refuse_full_disk(attempt, code)
            failed = spent(self.store, job.trial_id, self.rules)
            if failed is not None and not self.store.settled(job, self.rules):
                publish_failure(self.store, job, failed, self.rules)
        finally:
            del self.running[job.trial_id]
            attempt.release()
            self.not_before = 0.0
        self._after(running, seconds)

    def _after(self, running: _Running, seconds: float) -> None:
        job, number = running.attempt.job, running.attempt.number
        if job.keep == "none":
            shutil.rmtree(self.scratch / job.trial_id, ignore_errors=True)
        end = read_end(running.attempt.folder)
        outcome = end.outcome.outcome if end and end.outcome else None
        if self.store.settled(job, self.rules):
            self.todo.remove(job)
            self.clock.ended(job, seconds)
            self._note(job)
            self._tell("finished", job, attempt=number, outcome=self.done[job.trial_id], seconds=seconds)
        else:
            self._tell("retried", job, attempt=number, outcome=outcome, seconds=seconds)

    def _outcome(self, attempt: Attempt, code: int) -> Outcome:
        """Say what an exit code means where the worker could not say it itself."""
        if code < 0:
            return Killed(signal=-code)
        log = attempt.folder / "log.txt"
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        error = f"the worker ended with exit code {code} before it could say why"
        return Crashed(error=error, where="worker", log_tail=child.tail(text))

    def _refuse_full_disk(self, attempt: Attempt, code: int) -> None:
        if code != child.UNRECORDED:
            return
        end = read_end(attempt.folder)
        reason = (
            end.outcome.error
            if end and isinstance(end.outcome, Crashed)
            else "the disk refused a worker's result"
        )
        raise RecordError(
            f"trial {attempt.job.trial_id}: {reason}",
            way_out="Free some space and run the same command again; what is recorded stays.",
        )

    def _report_progress(self) -> None:
        for running in self.running.values():
            for line in running.reader.latest():
                self._tell("progress", running.attempt.job, attempt=running.attempt.number, **line)

    # The end

    def _stop(self) -> None:
        """End every worker and leave each attempt with its outcome."""
        self.engine.stop([running.worker for running in self.running.values()])
        for running in list(self.running.values()):
            running.worker.exit_code()
            with suppress(RecordError):  # on a full disk an attempt without an outcome counts as lost
                end_attempt(running.attempt, Killed(cause="preempted"))
            running.attempt.release()
        self.running.clear()
        self.engine.end_server()

    def _summary(self, interrupted: bool) -> Summary:
        unsettled_ids = [job.trial_id for job in self.jobs if job.trial_id not in self.done]
        return Summary(
            planned=len(self.jobs),
            outcomes=count(self.done),
            started=self.started,
            unsettled=tuple(dict.fromkeys([*unsettled_ids, *self.given_up])),
            problems=tuple(self.problems),
            seconds=time.monotonic() - self.began,
            interrupted=interrupted,
        )

    def _note(self, job: Job) -> None:
        result = self.store.result(job.trial_id)
        if result is not None:
            self.done[job.trial_id] = result.result.outcome

    def _tell(self, kind: Any, job: Job | None = None, **facts: Any) -> None:
        if self.listener is not None:
            self.listener(Event(kind=kind, tally=self._tally(), job=job, **facts))

    def _tally(self) -> Tally:
        running = {trial_id: (one.attempt.job, one.began) for trial_id, one in self.running.items()}
        waiting = [job for job in getattr(self, "todo", []) if job.trial_id not in running]
        left = self.clock.left(waiting, running)
        return Tally(len(self.jobs), len(self.done), len(running), count(self.done), left)


def end_attempt(attempt: Attempt, otherwise: Outcome) -> None:
    """End an attempt whose worker is gone: as it said, as its published result says, or `otherwise`."""
    result = attempt.store.result(attempt.job.trial_id)
    if result is not None and result.attempt == attempt.number:
        attempt.end(result.result, published=True)
    else:
        attempt.end(otherwise)


def _scratch(store: Store) -> Path:
    """Return the folder for kept weights of one store, outside its results."""
    key = hashlib.sha256(str(store.root.resolve()).encode()).hexdigest()[:8]
    return cache_folder() / "scratch" / f"{store.root.name}-{key}"
