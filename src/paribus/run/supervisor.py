"""Runs what is missing of a study: a worker a slot, failures recorded, retried where that can help.

The supervisor decides nothing from memory: before each start it asks the record, under the trial's lease,
whether there is still something to do. So it can die at any moment, and others can run beside it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.errors import RecordError
from paribus.machine import Machine
from paribus.plan.trial import CHECKPOINTS, SCORING, Job
from paribus.record import lease
from paribus.record.attempt import Attempt, open_attempt
from paribus.record.result import Killed
from paribus.record.store import Store
from paribus.run import preparation
from paribus.run.devices import Slot, slots, thread_environment
from paribus.run.ending import end_attempt, memory_kills, take_in
from paribus.run.engine.local import Local, Worker, WorkerError
from paribus.run.events import Clock, Event, Listener, Summary, Tally, Underway, count
from paribus.run.interrupts import Interrupts
from paribus.run.options import Options, selected
from paribus.run.progress import ProgressReader
from paribus.run.rescoring import RESCORE, without_training
from paribus.techniques.base import Settings
from paribus.worker import child

if TYPE_CHECKING:
    from paribus.plan.design import Plan

__all__ = ["Event", "Options", "Summary", "run", "run_jobs"]

LOOK_SECONDS = 0.25
"""How often running trials' progress, and trials in other hands, are looked at."""

FAILED_STARTS = 5
"""How often in a row a worker may fail to start before the run gives up."""


def run(
    plan: Plan,
    store: Store,
    machine: Machine,
    options: Options | None = None,
    listener: Listener | None = None,
    *,
    needed: Collection[str] | None = None,
) -> Summary:
    """Run every planned trial that has no outcome yet, or those of `needed`, and say how it ended.

    Ctrl-C and SIGTERM end the workers within two seconds and return a summary that says `interrupted`;
    nothing is lost, and the same call goes on from there. Raises RecordError where results cannot be written,
    StudyError where `only` names no trial, WorkerError where no worker can start.
    """
    from paribus.plan.lock import check_change, write_lock
    from paribus.plan.preflight import obstacles

    options, machine = options or Options(), machine.limited(plan.study.resources.memory_gib)
    jobs = [job for job in selected(plan.jobs, options.only) if needed is None or job.trial_id in needed]
    check_change(plan, store.root, options.accept_change)
    store.prepare()
    write_lock(plan, store.root)
    hindered = obstacles(plan, machine)
    return run_jobs(jobs, plan.study.folder, store, machine, options, listener=listener, hindered=hindered)


def run_jobs(
    jobs: Sequence[Job],
    base: Path,
    store: Store,
    machine: Machine,
    options: Options,
    *,
    listener: Listener | None = None,
    hindered: Mapping[str, Settings] | None = None,
) -> Summary:
    """Run jobs of any origin; `hindered` are those that cannot run here, with the reason that is recorded."""
    supervisor = Supervisor(jobs, base, store, machine, options)
    supervisor.listener = listener
    return supervisor.run(hindered or {})


@dataclass
class Running:
    """A trial in a worker's hands; `began` is monotonic."""

    attempt: Attempt
    worker: Worker
    slot: Slot
    began: float
    reader: ProgressReader
    memory_kills: int


class Supervisor:
    """One run over a list of jobs."""

    def __init__(
        self, jobs: Sequence[Job], base: Path, store: Store, machine: Machine, options: Options
    ) -> None:
        self.jobs, self.base, self.store, self.options = list(jobs), base.resolve(), store, options
        self.machine, self.listener, self.began = machine, None, time.monotonic()
        self.slots = slots(machine, options.max_workers)
        self.environment = thread_environment(machine, len(self.slots))
        self.engine = Local(options.preload, self.environment)
        self.watch, self.clock = lease.Watch(), Clock(max(1, len(self.slots)))
        self.scratch = options.scratch or preparation.scratch_folder(store)
        self.todo: list[Job] = []
        self.running: dict[str, Running] = {}
        self.done: dict[str, str] = {}
        self.problems: list[str] = []
        self.started, self.failed_starts, self.waiting, self.not_before = 0, 0, False, 0.0

    listener: Listener | None

    def run(self, hindered: Mapping[str, Settings]) -> Summary:
        """Run what is to be run; `hindered` trials are recorded as unsupported instead."""
        with Interrupts() as interrupts:
            try:
                self._prepare(hindered)
                if self.todo and not interrupts.happened and self._load(interrupts):
                    self._loop(interrupts)
            except BaseException:
                self._stop()
                raise
            if interrupts.happened:
                self._stop()
            return self._summary(interrupts.happened)

    def _prepare(self, hindered: Mapping[str, Settings]) -> None:
        self.store.prepare()
        for job, message in preparation.set_aside_damage(self.jobs, self.store):
            self.problems.append(message)
            self._tell("problem", job, message=message)
        environment = {**self.environment, **(self.slots[0].environment if self.slots else {})}
        self.rules = preparation.rules_for(self.jobs, self.store, self.machine, self.options, environment)
        preparation.record_obstacles(self.jobs, self.store, self.rules, hindered)
        self.todo = preparation.sort_out(self.jobs, self.store, self.rules, self.watch)
        self.todo = [job for job in self.todo if job.trial_id not in hindered]
        if self.todo:
            preparation.made(self.scratch)
        left = {job.trial_id for job in self.todo}
        for job in self.jobs:
            if job.trial_id not in left:
                self._note(job)

    def _load(self, interrupts: Interrupts) -> bool:
        self._tell("loading")
        return self.engine.warm_up(interrupts.wake)

    def _loop(self, interrupts: Interrupts) -> None:
        while (self.todo or self.running) and not interrupts.happened:
            if not self._can_start(interrupts):
                continue
            self._fill()
            if self.todo or self.running:
                handles = [running.worker.sentinel for running in self.running.values()]
                connection.wait([*handles, interrupts.wake], LOOK_SECONDS)
            self._collect()
            self._report_progress()

    def _can_start(self, interrupts: Interrupts) -> bool:
        """Have the libraries loaded again where their server is gone; False where that did not come about."""
        if len(self.todo) <= len(self.running) or self.engine.stands():
            return True
        try:
            return self._load(interrupts)
        except WorkerError:
            self._count_failed_start()
            return False

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

    def _free(self) -> list[Slot]:
        taken = {running.slot.name for running in self.running.values()}
        return [slot for slot in self.slots if slot.name not in taken]

    def _try(self, job: Job, slot: Slot) -> None:
        """Start a trial, unless by now it is settled, given up or in other hands."""
        opened = open_attempt(self.store, job, self.rules, self.watch)
        if isinstance(opened, Attempt):
            self._start(opened, slot)
        elif opened == "settled":
            self.todo.remove(job)
            self._note(job)
            self._tell("finished", job, outcome=self.done.get(job.trial_id))
        elif opened == "given_up":
            self.todo.remove(job)
            self._tell("finished", job, outcome="crashed", message="a score is missing and cannot be made")

    def _start(self, attempt: Attempt, slot: Slot) -> None:
        try:
            worker = self.engine.start(self._order(attempt, slot), attempt.lock)
        except WorkerError:
            self._failed_to_start(attempt)
            return
        except BaseException:
            attempt.release()
            raise
        reader = ProgressReader(attempt.folder / "progress.jsonl")
        begun = Running(attempt, worker, slot, time.monotonic(), reader, memory_kills())
        self.running[attempt.job.trial_id] = begun
        self.started += 1
        self.failed_starts = 0
        self._tell("started", attempt.job, attempt=attempt.number)

    def _failed_to_start(self, attempt: Attempt) -> None:
        """Try again with a new server; a child that did start after all holds the lease until it ends."""
        attempt.end(Killed(cause="lost"))
        attempt.release()
        self._count_failed_start()

    def _count_failed_start(self) -> None:
        self.failed_starts += 1
        if self.failed_starts > FAILED_STARTS:
            raise WorkerError(
                "workers end before they start", way_out="See what is installed: paribus doctor"
            )

    def _order(self, attempt: Attempt, slot: Slot) -> child.Order:
        scratch = preparation.made(self.scratch / attempt.job.trial_id)
        return child.Order(
            job=self.store.folder(attempt.job.trial_id).resolve() / "trial.json",
            attempt=attempt.folder.resolve(),
            environment={**os.environ, **self.environment, **slot.environment, "PARIBUS_ROLE": "worker"},
            base=self.base,
            scratch=scratch,
            body=self._body(attempt.job),
            preload=self.options.preload,
        )

    def _body(self, job: Job) -> str:
        """Choose what a worker does: train and score, or score alone what has trained and was kept."""
        alone = self.options.body == child.PERFORM and without_training(job, self.store, self.scratch)
        return RESCORE if alone else self.options.body

    def _collect(self) -> None:
        """Take in the workers that have ended."""
        by_handle = {running.worker.sentinel: running for running in self.running.values()}
        for handle in connection.wait(list(by_handle), 0) if by_handle else []:
            self._take_in(by_handle[handle])  # type: ignore[index]

    def _take_in(self, running: Running) -> None:
        """Settle one ended attempt: the trial is done, or another attempt follows."""
        job, attempt = running.attempt.job, running.attempt
        seconds = time.monotonic() - running.began
        try:
            end = take_in(attempt, running.worker.exit_code(), self.rules, running.memory_kills)
        finally:
            del self.running[job.trial_id]
            attempt.release()
        self.not_before = 0.0
        if self.store.settled(job, self.rules):
            self.todo.remove(job)
            self._clear_scratch(job)
            self.clock.ended(job, seconds)
            self._note(job)
            outcome = self.done[job.trial_id]
            self._tell("finished", job, attempt=attempt.number, outcome=outcome, seconds=seconds)
        else:
            outcome = end.outcome.outcome if end and end.outcome else None
            self._tell("retried", job, attempt=attempt.number, outcome=outcome, seconds=seconds)

    def _clear_scratch(self, job: Job) -> None:
        """Remove what only a next attempt would have used, and leave the weights that are kept."""
        folder = self.scratch / job.trial_id
        for left in [folder] if job.keep == "none" else [folder / CHECKPOINTS, folder / SCORING]:
            shutil.rmtree(left, ignore_errors=True)

    def _report_progress(self) -> None:
        for running in self.running.values():
            for line in running.reader.latest():
                self._tell("progress", running.attempt.job, attempt=running.attempt.number, **line)

    def _stop(self) -> None:
        """End every worker and leave each attempt with its outcome."""
        self.engine.stop([running.worker for running in self.running.values()])
        for running in self.running.values():
            running.worker.exit_code()
            with suppress(RecordError):  # on a full disk an attempt without an outcome counts as lost
                end_attempt(running.attempt, Killed(cause="preempted"))
            running.attempt.release()
        self.running.clear()
        self.engine.end_server()

    def _note(self, job: Job) -> None:
        result = self.store.result(job.trial_id)
        if result is not None:
            self.done[job.trial_id] = result.result.outcome

    def _tell(self, kind: Any, job: Job | None = None, **facts: Any) -> None:
        if self.listener is not None:
            self.listener(Event(kind=kind, tally=self._tally(), job=job, **facts))

    def _tally(self) -> Tally:
        running = [Underway(one.attempt.job, one.began, one.reader.share) for one in self.running.values()]
        left = self.clock.left([job for job in self.todo if job.trial_id not in self.running], running)
        return Tally(len(self.jobs), len(self.done), len(running), count(self.done), left)

    def _summary(self, interrupted: bool) -> Summary:
        return Summary(
            planned=len(self.jobs),
            outcomes=count(self.done),
            started=self.started,
            unsettled=tuple(job.trial_id for job in self.jobs if job.trial_id not in self.done),
            problems=tuple(self.problems),
            seconds=time.monotonic() - self.began,
            interrupted=interrupted,
        )
