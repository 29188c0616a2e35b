"""Workers on this machine: forked in a fraction of a second from a server that has everything imported."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, forkserver, resource_tracker
from pathlib import Path
from typing import IO, Any

import psutil

from paribus.errors import ParibusError
from paribus.run.interrupts import SIGNALS
from paribus.worker import child

_settings_of_server: list[object] = []
"""What the server of this process was started with; there is one a process, and it outlives a run."""

GONE = "the process that loads the libraries ended"

GRACE_SECONDS = 1.0
"""How long a worker has between SIGTERM and SIGKILL."""


class WorkerError(ParibusError):
    """Workers cannot start here."""


@dataclass(frozen=True)
class Worker:
    """A running child; `process.sentinel` becomes readable when it ends."""

    process: Any

    SERVER_GONE = 255
    """The exit code of a child whose server was killed, so that nobody knows what became of it."""

    @property
    def sentinel(self) -> int:
        return self.process.sentinel

    def exit_code(self) -> int:
        """Wait for the end and return the exit code, negative for a signal.

        Closing the process closes the pipe that the child watches, so it ends even where its server is gone.
        """
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        return code


class Local:
    """Starts and stops children; `environment` is what the server reads when it imports its libraries."""

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str]) -> None:
        self.preload = tuple(preload)
        quiet = [os.environ.get("PYTHONWARNINGS", ""), "ignore:resource_tracker:UserWarning"]
        self.environment = {**environment, "PYTHONWARNINGS": ",".join(filter(None, quiet))}
        self._settings = (self.preload, environment)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(self.preload))

    def stands(self) -> bool:
        """Say whether the server runs, so that a child can start without waiting for libraries."""
        pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
        try:
            return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def warm_up(self, wake: int) -> bool:
        """Start the server and see that a child finds what it needs; False if `wake` became readable first.

        Raises WorkerError where a library cannot be imported.
        """
        if _settings_of_server not in ([], [self._settings]):
            self.end_server()  # it was started for other libraries or thread settings
        _settings_of_server[:] = [self._settings]
        with tempfile.TemporaryFile() as said:
            self._ensure_server(said)
            answers: list[str] = []
            waiting = threading.Thread(target=self._ask, args=(answers,), daemon=True)
            waiting.start()
            while waiting.is_alive():
                if connection.wait([wake], 0.02):
                    self.end_server()
                    waiting.join(GRACE_SECONDS)
                    return False
            if answers != [""]:
                raise _cannot_start(answers[0] if answers else GONE, said)
        return True

    def _ask(self, answers: list[str]) -> None:
        """Have a child say what it lacks; the first start waits until the server has imported everything."""
        ours, theirs = self._context.Pipe(duplex=False)
        try:
            process = self._started(child.ready, (self.preload, theirs))
            theirs.close()
            answers.append(ours.recv())
            process.join()
        except (EOFError, WorkerError) as error:
            answers.append(getattr(error, "message", GONE))

    def start(self, order: child.Order, lock: int) -> Worker:
        """Start one child on an order, with a share in the lock of its attempt."""
        with Path(os.devnull).open("wb") as nowhere:
            self._ensure_server(nowhere)  # it runs, unless something has ended it
        return Worker(self._started(child.main, (order, child.Handed(lock))))

    def stop(self, workers: Sequence[Worker]) -> None:
        """End children: SIGTERM, after a second SIGKILL, and none is left when this returns."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for worker in workers:
                _send(worker, number)
            if _ended(workers, GRACE_SECONDS):
                return

    def end_server(self) -> None:
        """End the server at once, even while it imports; it starts again when it is needed."""
        server = forkserver._forkserver  # there is no public way to end it
        pid = getattr(server, "_forkserver_pid", None)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            getattr(server, "_stop")()  # noqa: B009

    def _ensure_server(self, output: IO[bytes]) -> None:
        with _environment(self.environment), _output_to(output.fileno()), _interrupts_held_back():
            forkserver.ensure_running()

    def _started(self, target: Any, arguments: tuple[Any, ...]) -> Any:
        process = self._context.Process(target=target, args=arguments)
        try:
            with _main_hidden():
                process.start()
        except (EOFError, ConnectionError, FileNotFoundError) as error:
            raise WorkerError(GONE, way_out="See what is installed: paribus doctor") from error
        return process


def _cannot_start(reason: str, said: IO[bytes]) -> WorkerError:
    """Say why, with the last line that the server printed where it did not get far enough to say so."""
    said.seek(0)
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip()]
    last = f" ({lines[-1]})" if lines and reason == GONE else ""
    return WorkerError(
        f"no worker can start: {reason}{last}", way_out="See what is installed: paribus doctor"
    )


def _send(worker: Worker, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if worker.process.exitcode is None:
            os.kill(worker.process.pid, number)


def _ended(workers: Sequence[Worker], seconds: float) -> bool:
    """Wait until all have ended, at most that long."""
    until = time.monotonic() + seconds
    left = [worker for worker in workers if worker.process.exitcode is None]
    while left and time.monotonic() < until:
        connection.wait([worker.sentinel for worker in left], until - time.monotonic())
        left = [worker for worker in left if worker.process.exitcode is None]
    return not left


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Keep children from importing the calling script again, so that it needs no `if __name__` guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Let the server inherit these values; libraries read their thread settings when they are imported."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _output_to(file: int) -> Iterator[None]:
    """Let the server print into a file and not between the lines of a progress bar."""
    before = os.dup(1), os.dup(2)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        for number, handle in enumerate(before, start=1):
            os.dup2(handle, number)
            os.close(handle)


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Start the server deaf to Ctrl-C and its like, which reach every process: its supervisor ends it.

    A blocked signal is inherited, and one that arrives meanwhile is not lost to this process.
    """
    resource_tracker.ensure_running()  # starting it unblocks signals, so it comes first
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
