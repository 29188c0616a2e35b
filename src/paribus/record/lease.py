"""Leases: an attempt stands under its number already locked, and the next can only follow when it is over.

The folder of an attempt is built under a temporary name, with its lease written and locked, and then renamed
to its number, which fails where that number is taken. The lock lives as long as the supervisor or its worker
does. Whoever opens attempt N+1 holds the lock of attempt N until N+1 stands, and nobody ever takes a lock to
go on working: so an attempt that is over stays over, and two can never run side by side.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from paribus.record.files import fault_point, fsync_folder, recording, take_lock, to_json
from paribus.record.provenance import host_key
from paribus.record.result import SCHEMA
from paribus.techniques.base import Settings

BEAT_SECONDS = 5.0
"""How often a worker bumps the counter in `heartbeat`."""
BUILDING = ".new-"
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT)
"""What renaming an attempt to its number fails with where somebody else was first."""
STILL_SECONDS = 60.0
"""How long the counter must stand still, on an observer's clock, to be dead on another host."""


class Lease(Settings):
    """Who tries a trial: `lease.json`. `host` names a running kernel, `started` is in UTC."""

    paribus: int = SCHEMA
    trial_id: str
    attempt: int
    host: str
    supervisor_pid: int
    machine_class: str
    provenance: str
    started: str


def now() -> str:
    """Return the time in UTC, to the microsecond."""
    return datetime.now(UTC).isoformat()


def numbers(attempts: Path) -> list[int]:
    """Return the numbers of a trial's attempts in order."""
    with recording(attempts):
        try:
            return sorted(int(entry.name) for entry in os.scandir(attempts) if entry.name.isdigit())
        except FileNotFoundError:
            return []


def numbered(attempts: Path, number: int) -> Path:
    """Return the folder of one attempt."""
    return attempts / f"{number:04d}"


def read(attempt: Path) -> Lease:
    """Read the lease of an attempt."""
    return Lease.model_validate_json((attempt / "lease.json").read_bytes())


def raise_lease(attempts: Path, lease: Lease) -> int | None:
    """Make an attempt appear under its number, locked; return the lock, or None where the number is taken."""
    building = attempts / f"{BUILDING}{os.getpid()}-{os.urandom(4).hex()}"
    lock = None
    with recording(attempts):
        try:
            building.mkdir(parents=True)
            lock = take_lock(building / "lease.json", create=True)
            if lock is not None:
                _stand(building, numbered(attempts, lease.attempt), lock, to_json(lease))
        except OSError as error:
            if lock is not None:
                os.close(lock)
            shutil.rmtree(building, ignore_errors=True)
            if error.errno in TAKEN:
                return None
            raise
    fault_point("after_lease", attempts)
    return lock


def _stand(building: Path, final: Path, lock: int, data: bytes) -> None:
    os.write(lock, data)
    fault_point("before_fsync", building / "lease.json")
    os.fsync(lock)
    fault_point("before_rename", building)
    building.rename(final)
    fsync_folder(final.parent)


class Watch:
    """Tells whether attempts are over; on another host's attempts it needs to look more than once."""

    def __init__(self, still_seconds: float = STILL_SECONDS) -> None:
        self.host = host_key()
        self._still_seconds = still_seconds
        self._seen: dict[Path, tuple[bytes, float]] = {}

    def take_over(self, attempt: Path) -> int | None:
        """Take the lock of an attempt that is over; None while it may still be running."""
        with recording(attempt):
            try:
                lock = take_lock(attempt / "lease.json")
            except FileNotFoundError:
                return os.open(attempt, os.O_RDONLY)  # no lease was ever in it: nobody is there
        if lock is not None and not self._may_run_elsewhere(attempt):
            return lock
        if lock is not None:
            os.close(lock)
        return None

    def running(self, attempt: Path) -> bool:
        """Say whether an attempt may still be running."""
        lock = self.take_over(attempt)
        if lock is None:
            return True
        os.close(lock)
        return False

    def _may_run_elsewhere(self, attempt: Path) -> bool:
        """Watch the counter of an attempt that another host leased."""
        if (attempt / "outcome.json").exists() or lease_host(attempt) == self.host:
            return False
        beat = attempt / "heartbeat"
        counter = beat.read_bytes() if beat.exists() else b""
        before, since = self._seen.setdefault(attempt, (counter, time.monotonic()))
        if before != counter:
            self._seen[attempt] = (counter, time.monotonic())
            return True
        return time.monotonic() - since < self._still_seconds


def lease_host(attempt: Path) -> str | None:
    """Return which host leased an attempt; None where its lease cannot be read."""
    try:
        return read(attempt).host
    except (ValidationError, OSError):
        return None
