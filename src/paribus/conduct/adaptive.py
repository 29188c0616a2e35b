"""Runs a study; one that ends when all is decided look by look, with further seeds where they can tell.

Nothing is remembered between looks: which trials the next one needs is worked out from the record. So it can
be stopped at any moment, and the same call goes on with the same trials in the same order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from paribus.compare.adaptive import Replay, replay
from paribus.machine import Machine
from paribus.record.store import Store
from paribus.run import supervisor
from paribus.run.events import Event, Listener, Summary, Tally
from paribus.run.options import Options

if TYPE_CHECKING:
    from paribus.plan.design import Plan


def run(
    plan: Plan,
    store: Store,
    machine: Machine,
    options: Options | None = None,
    listener: Listener | None = None,
) -> Summary:
    """Run every planned trial that is needed and has no outcome yet, and say how it ended.

    In a study repeated `until: decided` each look runs one more seed of the contrasts that are still open,
    on both of their sides. The summary speaks of all looks of this call. Interruptions and errors are those
    of `paribus.run.supervisor.run`.
    """
    if plan.study.repeat.looks is None:
        return supervisor.run(plan, store, machine, options, listener)
    found, told = replay(plan, store.recorded()), options or Options()
    summary: Summary | None = None
    while True:
        _tell(found, None if found.ended else listener)
        ids = {job.trial_id for job in found.plan.jobs}
        summary = _joined(summary, supervisor.run(plan, store, machine, told, listener, needed=ids))
        found = replay(plan, store.recorded())
        if summary.interrupted or {job.trial_id for job in found.plan.jobs} == ids:
            _tell(found, None if summary.interrupted else listener)
            return summary
        told = replace(told, retry=frozenset())  # what was asked to run again has done so


def _joined(before: Summary | None, last: Summary) -> Summary:
    """Count what a look started with what those before it did; the last one knows every outcome."""
    if before is None:
        return last
    return replace(
        last,
        started=before.started + last.started,
        problems=before.problems + last.problems,
        seconds=before.seconds + last.seconds,
    )


def _tell(found: Replay, listener: Listener | None) -> None:
    if listener is not None:
        planned = len(found.plan.jobs)
        tally = Tally(planned, planned - len(found.waiting), 0, {}, None)
        listener(Event(kind="look", tally=tally, message=said(found)))


def said(found: Replay) -> str:
    """Say in a sentence where an adaptive study stands."""
    looks, planned, most = found.whole.study.repeat.looks, len(found.plan.jobs), len(found.whole.jobs)
    of = f"{found.seeds} of at most {looks.last if looks else found.seeds} seeds"
    if found.ended:
        return f"ended after {of}: {planned} of {most} trials were needed, {found.saved} saved"
    going = f"{found.open} of {len(found.stops)} contrasts open, " if found.stops else ""
    return f"look at {of}: {going}{_count(len(found.waiting))} to run"


def _count(trials: int) -> str:
    return f"{trials} trial{'' if trials == 1 else 's'}"
