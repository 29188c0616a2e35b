"""Runs a Python program that a model wrote in a process of its own, behind walls that the kernel keeps.

What holds, whatever the program does: no network, no sight of any file but the interpreter's and the
system's programs (read-only), an empty /tmp in memory as working, home and temporary folder, no environment,
no process but its own; limits on wall time, processor time, memory (of each process, and of all together),
processes, open files, and on what is written to files and to output. All its processes end with it, and
nothing is left on the disk. The walls are bubblewrap's where it works here, else namespaces of our own.

A program passes where control comes back from its last line, in the process that began it: what ran it then
says a random token to process 1. Printing, any exit code, an exit before the end, and closed or flooded
files are no pass. What no sandbox can tell from a pass is a program that searches its own interpreter for the
token: its tests say nothing then, though the walls hold all the same. Not kept out are faults of the kernel
itself, a machine that is slower within these limits, and memory in files without a name (memfd), which is
bounded only by open files x size of a file x processes.
"""

from __future__ import annotations

import json
import math
import os
import platform
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from paribus.errors import ParibusError, nearest
from paribus.score.walls import BOTH, MIB, Walls, another_user, counted_before, map_users, shown, started

Outcome = Literal["passed", "failed", "timed_out", "out_of_memory", "killed"]
GRACE_SECONDS: Final = 10.0
"""Beyond a program's own time, until its sandbox is ended from outside."""
PIECE: Final = 65536
WAY_OUT: Final = (
    "Install bubblewrap (apt install bubblewrap, dnf install bubblewrap) and let this user make namespaces "
    "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0; in a container "
    "--security-opt seccomp=unconfined --security-opt systempaths=unconfined)."
)


@dataclass(frozen=True)
class Limits:
    """What a program may use; memory is of each process and of all together, files are those in /tmp."""

    seconds: float = 5.0
    memory_mib: int = 512
    processes: int = 32
    open_files: int = 32
    files: int = 4096
    file_mib: int = 8
    output_bytes: int = 8192


@dataclass(frozen=True)
class Ended:
    """How a program ended: its error's last line, wall time, and the last bytes of its output."""

    outcome: Outcome
    error: str
    seconds: float
    output: str


def available() -> str:
    """Return which walls hold here, with their version; raises ParibusError where none do."""
    if probe() == "namespaces":
        return f"namespaces of Linux {platform.release()}"
    return subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=True).stdout.strip()


def probe() -> Walls:
    """Return the walls that hold on this machine, found by a program that tries them once."""
    reasons = {}
    for walls in BOTH:
        reasons[walls] = fault(walls)
        if reasons[walls] is None:
            return walls
    told = "; ".join(f"{walls}: {reason}" for walls, reason in reasons.items())
    raise ParibusError(
        f"programs that a model wrote cannot be contained on this machine: {told}.", way_out=WAY_OUT
    )


@cache
def fault(walls: Walls) -> str | None:
    """Return why these walls do not hold here; None where they do."""
    if walls not in BOTH:
        raise ParibusError(f"there are no walls {walls!r}.", way_out=nearest(walls, BOTH))
    if sys.platform != "linux":
        return "Linux is needed"
    if walls == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    limits = Limits(seconds=20, memory_mib=256, processes=8)
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        check = f"FOLDER, PORT = {folder!r}, {server.getsockname()[1]}\n{CHECK}"
        try:
            ended, early = (_run(program, limits, walls) for program in (check, "import sys; sys.exit(0)"))
        except ParibusError as error:
            return error.message
    if ended.outcome != "passed":
        return ended.error.removeprefix("AssertionError: ")
    return None if early.outcome == "failed" else "a program that leaves early passes"


CHECK: Final = """
import mmap, os, signal, socket
def refused(do):
    try:
        do()
    except OSError:
        return True
    return False
seen = [name for name in os.listdir("/proc") if name.isdecimal()]
assert len(seen) == 2, f"it sees {len(seen)} processes"
assert refused(lambda: os.listdir(FOLDER)), "it sees the machine's temporary files"
assert os.listdir("/tmp") == [] and os.getcwd() == "/tmp", "its folder is not its own"
assert not {"USER", "PYTHONPATH", "LOGNAME", "SHELL"} & set(os.environ), "it has our environment"
assert refused(lambda: socket.create_connection(("127.0.0.1", PORT), 1)), "it reaches the network"
for folder in ("/", "/usr", os.path.dirname(os.__file__)):
    assert refused(lambda: open(os.path.join(folder, "written"), "x")), f"it can write to {folder}"
assert refused(lambda: os.kill(1, 9) or os.open("/proc/1/mem", os.O_RDONLY)), "it can read process 1"
assert refused(lambda: mmap.mmap(-1, 2**29)), "its memory has no limit"
assert refused(lambda: open("large", "wb").write(bytes(2**25))), "its files have no limit"
def fork():
    for _ in range(64):
        if not os.fork():
            signal.pause()
assert refused(fork), "its processes have no limit"
"""
"""Passes inside walls that hold."""


def run(program: str, limits: Limits | None = None, walls: Walls | None = None) -> Ended:
    """Run a program text behind the walls that hold here; raises ParibusError where the named ones do not.

    The program is `__main__` and has the standard library alone. Sets have one order in every run.
    """
    chosen = walls or probe()
    if reason := fault(chosen):
        raise ParibusError(f"programs cannot be contained by {chosen}: {reason}.", way_out=WAY_OUT)
    return _run(program, limits or Limits(), chosen)


def _run(program: str, limits: Limits, walls: Walls) -> Ended:
    """Run a program, whether or not the walls have been tried."""
    user = another_user()
    with started(walls, limits.file_mib, user) as process:
        began = b""
        if walls == "namespaces":
            began = os.read(process.stderr.fileno(), PIECE)
            if began == b"\n":
                map_users(process.pid, user)
        with suppress(BrokenPipeError):  # what it says of its end is read below
            process.stdin.write(json.dumps(_order(program, limits, user)).encode() + b"\n")
            process.stdin.flush()
        output, said = _heard(process, limits, began)
    lines = said.decode("utf-8", "replace").split("\n")
    if "ready" not in lines:
        reason = next((line for line in reversed(lines) if line), "it ended at once")
        raise ParibusError(f"the sandbox did not start: {reason}")
    text = output.decode("utf-8", "replace")
    try:
        return Ended(**json.loads(lines[lines.index("ready") + 1]), output=text)
    except ValueError:
        return Ended("killed", "the sandbox was ended from outside", limits.seconds, text)


def _order(program: str, limits: Limits, user: int | None) -> dict[str, Any]:
    """Say to the process inside what it is to run and how."""
    return {
        "program": program,
        "user": user,
        "shown": shown(),
        "seconds": limits.seconds,
        "memory_bytes": limits.memory_mib * MIB,
        "file_bytes": limits.file_mib * MIB,
        "files": limits.files,
        "limits": {
            "RLIMIT_AS": limits.memory_mib * MIB,
            "RLIMIT_CPU": math.ceil(limits.seconds) + 1,
            "RLIMIT_NPROC": limits.processes + counted_before(),
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_FSIZE": limits.file_mib * MIB,
            "RLIMIT_CORE": 0,
        },
    }


def _heard(process: Any, limits: Limits, began: bytes) -> tuple[bytes, bytes]:
    """Return the last bytes of a program's output, and what process 1 said, once all of them have ended."""
    until = time.monotonic() + limits.seconds + GRACE_SECONDS
    output, said = bytearray(), bytearray(began)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, (output, limits.output_bytes))
        selector.register(process.stderr, selectors.EVENT_READ, (said, PIECE))
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                gathered, most = key.data
                piece = os.read(key.fd, PIECE)
                gathered += piece
                del gathered[:-most]
                if not piece:
                    selector.unregister(key.fileobj)
    return bytes(output), bytes(said)
