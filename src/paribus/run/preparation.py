"""Before the first start: damage is set aside, what cannot run here is recorded, what is done is noted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paribus.errors import ParibusError, Place
from paribus.machine import Machine
from paribus.plan.preflight import obstacles
from paribus.plan.trial import Job
from paribus.record import lease
from paribus.record.attempt import attempts_of, reconcile
from paribus.record.checked import problems
from paribus.record.provenance import provenance
from paribus.record.result import TrialResult, Unsupported
from paribus.record.rules import Rules
from paribus.record.store import Store
from paribus.run.options import Options, selected
from paribus.run.pending import unsettled
from paribus.sources.cache import cache_folder
from paribus.techniques.base import Settings

if TYPE_CHECKING:
    from paribus.plan.design import Plan


def set_aside_damage(jobs: Sequence[Job], store: Store) -> Iterator[tuple[Job, str]]:
    """Move damaged files of these trials aside, so that they run again; yield each with what was wrong."""
    chosen = {job.trial_id: job for job in jobs}
    for problem in store.problems:
        still = problem in problems(store.folder(problem.trial_id))  # it may have gone along with another
        if problem.trial_id in chosen and still:
            place = store.set_aside(problem)
            yield chosen[problem.trial_id], f"{problem} (now in {place})"


def rules_for(
    jobs: Sequence[Job], store: Store, machine: Machine, options: Options, environment: Mapping[str, str]
) -> Rules:
    """Fix on whose behalf trials are tried, and which recorded outcomes are to be run once more."""
    return Rules(
        machine_class=machine.machine_class,
        provenance=store.write_provenance(provenance(machine, environment)),
        retries=options.retries,
        again=asked_again(jobs, store, options),
        forgiven=_last_attempts(jobs, store) if options.retry else {},
    )


def asked_again(jobs: Sequence[Job], store: Store, options: Options) -> dict[str, int | None]:
    """Return the recorded outcomes that `retry` names: trial -> the attempt that gave it."""
    results = store.results()
    return {
        job.trial_id: results[job.trial_id].attempt
        for job in jobs
        if job.trial_id in results and results[job.trial_id].result.outcome in options.retry
    }


def _last_attempts(jobs: Sequence[Job], store: Store) -> dict[str, int]:
    last = {job.trial_id: lease.numbers(attempts_of(store, job.trial_id))[-1:] for job in jobs}
    return {trial_id: numbers[0] for trial_id, numbers in last.items() if numbers}


def record_obstacles(
    jobs: Sequence[Job], store: Store, rules: Rules, hindered: Mapping[str, Settings]
) -> None:
    """Record what cannot run here, without a process: it is an outcome on this class of machine."""
    for job in jobs:
        if job.trial_id in hindered and not store.settled(job, rules):
            result = TrialResult(
                trial_id=job.trial_id,
                attempt=None,
                machine_class=rules.machine_class,
                provenance=rules.provenance,
                result=Unsupported(**hindered[job.trial_id].model_dump()),
            )
            store.write_job(job)
            if not store.publish_result(result):
                store.outrank(result)


def would_start(plan: Plan, store: Store, machine: Machine, options: Options) -> list[Job]:
    """Return the trials that a run with these options starts, in the plan's order."""
    jobs, machine = selected(plan.jobs, options.only), machine.limited(plan.study.resources.memory_gib)
    rules = Rules(machine.machine_class, provenance="", again=asked_again(jobs, store, options))
    hindered = obstacles(plan, machine)
    return [job for job in unsettled(jobs, store, rules) if job.trial_id not in hindered]


def sort_out(jobs: Sequence[Job], store: Store, rules: Rules, watch: lease.Watch) -> list[Job]:
    """Tidy up what dead supervisors left of settled trials, and return the trials still to do."""
    todo = unsettled(jobs, store, rules)
    left = {job.trial_id for job in todo}
    for job in jobs:
        if job.trial_id not in left:
            reconcile(store, job.trial_id, watch)
            store.write_job(job)
    return todo


def scratch_folder(store: Store) -> Path:
    """Return where kept weights of one store go, outside its results."""
    key = hashlib.sha256(str(store.root.resolve()).encode()).hexdigest()[:8]
    return cache_folder("scratch") / f"{store.root.name}-{key}"


def made(folder: Path) -> Path:
    """Make a folder for weights; raises ParibusError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ParibusError(
            f"the folder for weights cannot be made: {error.strerror}",
            place=Place(folder),
            way_out="Set the environment variable PARIBUS_CACHE to a folder with space that can be written.",
        ) from error
    return folder
