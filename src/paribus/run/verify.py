"""Rerun finished trials in scratch and see whether everything comes out the same."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paribus.machine import Machine
from paribus.plan.trial import Job
from paribus.record.result import HeldoutScore
from paribus.record.store import Recorded, Store
from paribus.run.options import Options
from paribus.run.supervisor import run_jobs
from paribus.sources.cache import cache_folder

if TYPE_CHECKING:
    from paribus.plan.design import Plan


@dataclass(frozen=True)
class Comparison:
    """One trial rerun: its hashes as recorded and as found now, and how far held-out losses differ at most.

    `loss_difference` is in nats a token; it is absent where a score could not be compared. `outcome` is what
    the rerun came to.
    """

    trial_id: str
    outcome: str
    recorded: Mapping[str, str]
    found: Mapping[str, str]
    loss_difference: float | None

    @property
    def same(self) -> dict[str, bool]:
        """Say of each hash, and of the held-out losses, whether it came out the same."""
        hashes = {name: self.recorded[name] == self.found.get(name) for name in self.recorded}
        return {**hashes, "heldout_loss": self.loss_difference == 0}

    @property
    def identical(self) -> bool:
        return all(self.same.values())


def verify(
    plan: Plan,
    store: Store,
    machine: Machine,
    sample: int,
    *,
    scratch: Path | None = None,
    options: Options | None = None,
) -> list[Comparison]:
    """Rerun `sample` of the finished trials and compare what each run must repeat.

    The choice depends on the trials' ids alone and takes a trial of every cell before a second of any. Raises
    KeyboardInterrupt where it was stopped.
    """
    recorded = {
        trial_id: one for trial_id, one in store.recorded().items() if one.result.identity is not None
    }
    chosen = choose([job for job in plan.jobs if job.trial_id in recorded], sample)
    with tempfile.TemporaryDirectory(dir=scratch or cache_folder("verify"), prefix="verify-") as folder:
        again = Store(Path(folder) / "results")
        options = replace(options or Options(), scratch=Path(folder) / "weights")
        jobs = [
            job.model_copy(update={"keep": "none", "checkpoint_every": None, "tasks": ()}) for job in chosen
        ]
        if run_jobs(jobs, plan.study.folder, again, machine, options).interrupted:
            raise KeyboardInterrupt
        found = again.recorded()
    return [compare(recorded[job.trial_id], found.get(job.trial_id)) for job in chosen]


def choose(jobs: Sequence[Job], sample: int) -> list[Job]:
    """Choose jobs by the hash of their ids, spread over the groups, and return them in the plan's order."""
    ranked = sorted(jobs, key=lambda job: hashlib.sha256(f"verify {job.trial_id}".encode()).hexdigest())
    seen: dict[str, int] = {}
    rounds: dict[str, int] = {}
    for job in ranked:
        rounds[job.trial_id] = seen[job.group] = seen.get(job.group, -1) + 1
    first = sorted(ranked, key=lambda job: rounds[job.trial_id])[:sample]
    return [job for job in jobs if job in first]


def compare(recorded: Recorded, found: Recorded | None) -> Comparison:
    """Hold a rerun beside what is recorded."""
    return Comparison(
        trial_id=recorded.job.trial_id,
        outcome=found.result.result.outcome if found else "no outcome",
        recorded=_hashes(recorded),
        found=_hashes(found) if found else {},
        loss_difference=_loss_difference(recorded.scores, found.scores) if found else None,
    )


def _hashes(recorded: Recorded) -> dict[str, str]:
    return recorded.result.identity.model_dump() if recorded.result.identity else {}


def _loss_difference(old: Sequence[HeldoutScore], new: Sequence[HeldoutScore]) -> float | None:
    """Return the largest difference between readings at the same step; None where none match."""
    known = {
        (score.score_id, reading.step, reading.split, reading.group): reading.loss
        for score in old
        for reading in score.curve
    }
    pairs = [
        abs(known[key] - reading.loss)
        for score in new
        for reading in score.curve
        if (key := (score.score_id, reading.step, reading.split, reading.group)) in known
    ]
    return max(pairs, default=None)
