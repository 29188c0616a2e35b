"""Planned less recorded: the whole resume logic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from paribus.machine import Machine
from paribus.plan.trial import Job
from paribus.record import lease
from paribus.record.attempt import attempts_of
from paribus.record.rules import Rules
from paribus.record.store import Store

if TYPE_CHECKING:
    from paribus.plan.design import Plan


def pending(plan: Plan, store: Store, machine: Machine) -> list[Job]:
    """Return the planned trials that have no outcome yet that counts on this machine, in the plan's order."""
    here = machine.limited(plan.study.resources.memory_gib)
    return unsettled(plan.jobs, store, Rules(here.machine_class, provenance=""))


def unsettled(jobs: Iterable[Job], store: Store, rules: Rules) -> list[Job]:
    """Return the trials among `jobs` that still need a run."""
    return [job for job in jobs if not store.settled(job, rules)]


def status(plan: Plan, store: Store, machine: Machine) -> dict[str, Any]:
    """Say how far a study is: `planned`, `done`, counts by outcome, how many run now, and what is damaged."""
    left = {job.trial_id for job in pending(plan, store, machine)}
    results, watch = store.results(), lease.Watch()
    done = [results[job.trial_id].result.outcome for job in plan.jobs if job.trial_id not in left]
    running = [trial_id for trial_id in left if _is_running(store, trial_id, watch)]
    return {
        "study": plan.study.name,
        "planned": len(plan.jobs),
        "done": len(done),
        "outcomes": dict(sorted(Counter(done).items())),
        "running": len(running),
        "problems": [str(problem) for problem in store.problems],
    }


def _is_running(store: Store, trial_id: str, watch: lease.Watch) -> bool:
    attempts = attempts_of(store, trial_id)
    last = lease.numbers(attempts)[-1:]
    return bool(last) and watch.running(lease.numbered(attempts, last[0]))
