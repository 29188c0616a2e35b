"""Kill supervisors and workers at random moments and at named points, then count what the attempts say.

    python tests/faults/kill_rounds.py --rounds 30 [--seed N]

Each round runs a handful of fast trials under one or two supervisors, kills something with SIGKILL, starts
once more, and holds the record against the trials' own journal: none missing, none finished twice, no two
attempts at one trial side by side, every lease ended, no file half-written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psutil
import synthetic

from paribus.record.attempt import read_end
from paribus.record.lease import numbered, numbers, read
from paribus.record.store import Store
from paribus.run.supervisor import run_jobs

TRIALS = 4
POINTS = [
    "supervisor:before_fsync:trial.json", "supervisor:before_link:*", "supervisor:after_link:*",
    "supervisor:before_fsync:lease.json", "supervisor:before_rename:*", "supervisor:after_lease:*",
    "worker:started:*", "worker:before_fsync:*.json", "worker:before_link:*.parquet",
    "worker:before_fsync:result.json", "worker:before_link:result.json", "worker:after_link:result.json",
    "worker:before_outcome:*", "worker:before_link:outcome.json", "worker:after_link:outcome.json",
]  # fmt: skip


@dataclass
class Count:
    """What the attempts of all rounds say."""

    rounds: int = 0
    leases: int = 0
    starts: int = 0
    ends: int = 0
    published: int = 0
    killed_workers: int = 0
    killed_supervisors: int = 0
    faults: list[str] = field(default_factory=list)


def supervise(base: Path) -> int:
    """Be one supervisor, in a process of its own, and return the exit code."""
    jobs = synthetic.jobs(TRIALS)
    retries = {"killed": 50, "crashed": 0}
    summary = run_jobs(
        jobs, base, Store(base / "results"), synthetic.MACHINE, synthetic.options(retries=retries)
    )
    return summary.exit_code


def rounds(count: int, seed: int, folder: Path) -> Count:
    """Run that many rounds, each in a folder of its own, and count."""
    total = Count()
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        base = folder / f"round {number} ü"
        for trial in range(TRIALS):
            synthetic.behave(base, trial, seconds=rng.uniform(0.02, 0.2))
        point = POINTS[(seed + number // 2) % len(POINTS)] if number % 2 else None
        _one_round(base, rng, point, total)
        _inspect(base, total, f"round {number} ({point or 'random moment'})")
        total.rounds += 1
    return total


def _one_round(base: Path, rng: random.Random, point: str | None, total: Count) -> None:
    """Start, kill, start again, until everything is settled."""
    fault = {"PARIBUS_FAULT": f"kill:{point}", "PARIBUS_FAULT_ONCE": str(base / "fault happened")}
    supervisors = [_start(base, fault if point else {}) for _ in range(rng.choice((1, 1, 2)))]
    if point is None:
        _kill_at_random(base, supervisors, rng, total)
    for code in _wait(supervisors):
        if code not in (0, -signal.SIGKILL):
            total.faults.append(f"{base.name}: a supervisor ended with {code}")
    if _wait([_start(base, {})]) != [0]:
        total.faults.append(f"{base.name}: not settled by one more start")


def _kill_at_random(base: Path, supervisors: list[int], rng: random.Random, total: Count) -> None:
    for _ in range(rng.choice((1, 2, 3))):
        _await(base, lines=rng.randint(0, 2 * TRIALS))
        time.sleep(rng.uniform(0.0, 0.1))
        victims = _workers(base) if rng.random() < 0.5 else []
        if victims:
            _kill(rng.choice(victims))
            total.killed_workers += 1
        else:
            _kill(rng.choice(supervisors))
            total.killed_supervisors += 1


def _await(base: Path, lines: int) -> None:
    """Wait until the trials have written that much into their journal, or it seems they will not any more."""
    deadline = time.monotonic() + 4
    while len(synthetic.journal(base)) < lines and time.monotonic() < deadline:
        time.sleep(0.005)


def _workers(base: Path) -> list[int]:
    """Return the processes that the journal says are at work: begun and not ended."""
    lines = synthetic.journal(base)
    begun = {int(pid) for word, _, pid in lines if word == "begin"}
    return sorted(begun - {int(pid) for word, _, pid in lines if word == "end"})


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _start(base: Path, environment: dict[str, str]) -> int:
    """Fork a supervisor, in a session of its own, and return its process id."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.environ.update(environment)
        code = 99
        try:
            code = supervise(base)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def _wait(supervisors: list[int]) -> list[int]:
    """Wait for supervisors and return their exit codes, negative for a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in supervisors]


def _inspect(base: Path, total: Count, name: str) -> None:
    """Hold the record against what the trials themselves wrote down."""
    store, say = Store(base / "results"), lambda text: total.faults.append(f"{name}: {text}")
    lines = synthetic.journal(base)
    if any(word == "overlap" for word, *_ in lines):
        say("two attempts at one trial ran side by side")
    total.starts += sum(word == "begin" for word, *_ in lines)
    if store.problems:
        say(f"damaged: {[str(problem) for problem in store.problems]}")
    recorded = store.recorded()
    for job in synthetic.jobs(TRIALS):
        one = recorded.get(job.trial_id)
        if one is None or one.result.result.outcome != "finished" or not one.scores:
            say(f"trial {job.trial.seed} is missing")
        else:
            _inspect_attempts(store, job.trial_id, one.result.attempt, total, say)
    _inspect_files(base, say)


def _inspect_attempts(store: Store, trial_id: str, published_by: int | None, total: Count, say) -> None:
    attempts = store.folder(trial_id) / "attempts"
    before = None
    published = []
    for number in numbers(attempts):
        lease, end = read(numbered(attempts, number)), read_end(numbered(attempts, number))
        total.leases += 1
        if end is None:
            say(f"attempt {number} of {trial_id} has no end")
            continue
        total.ends += 1
        started, ended = map(datetime.fromisoformat, (lease.started, end.ended))
        if ended < started or (before is not None and started < before):
            say(f"attempt {number} of {trial_id} overlaps")
        before = ended
        published += [number] if end.published else []
    total.published += len(published)
    if published != [published_by]:
        say(f"the result of {trial_id} is of attempt {published_by}; the attempts say {published}")


def _inspect_files(base: Path, say) -> None:
    for path in (base / "results").rglob("*"):
        if (
            path.name.startswith((".tmp-", ".new-")) and path.parent.name != "provenance"
        ):  # swept after an hour
            say(f"left behind: {path.relative_to(base)}")
        if path.suffix == ".json":
            json.loads(path.read_text())


def left_running(folder: Path) -> list[int]:
    """Return the processes that a while after all supervisors have ended still hold files in a folder."""
    deadline = time.monotonic() + 5
    while True:
        found = [process.pid for process in psutil.process_iter() if _holds(process, folder)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _holds(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.pid != os.getpid() and any(str(folder) in file.path for file in process.open_files())
    except psutil.Error:
        return False


def main() -> int:
    """Run the rounds and print the count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(10**6)
    with tempfile.TemporaryDirectory() as folder:
        total = rounds(given.rounds, seed, Path(folder))
        total.faults += [f"process {pid} is left running" for pid in left_running(Path(folder))]
    print(f"seed {seed}: {total}")
    return 1 if total.faults else 0


if __name__ == "__main__":
    sys.exit(main())
