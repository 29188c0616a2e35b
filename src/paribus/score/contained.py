"""The first process inside a sandbox, which `walls.py` starts: it has the standard library alone.

As process 1 it can be neither signalled nor traced by what it starts, and when it ends the kernel ends all
the others. Standard input is one JSON line, what to run and how; its end means that nobody waits any more. To
standard error go an empty line (this process wants its users mapped), `ready`, and the verdict as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
"""Mounts, control groups, host name, IPC, users, processes, network: CLONE_NEW* of linux/sched.h."""
RDONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8
"""MS_* of linux/mount.h; the first three are MOUNT_ATTR_* too."""
BIND, DETACH, PRIVATE = 4096 | 16384, 2, 16384 | 262144
MOUNT_SETATTR, AT_FDCWD, RECURSIVE = 442, -100, 0x8000
DUMPABLE, DEATH_SIGNAL, NO_NEW_PRIVILEGES = 4, 1, 38
"""PR_SET_* of linux/prctl.h."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
TICK_MS = 5
RESIDENT = 14
"""The column of /proc/sysvipc/shm that has the bytes of a segment in memory."""
LONGEST = 500
libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> None:
    """Call a function of the C library; raises OSError, which names it, where it returns -1."""
    given = [os.fsencode(value) if isinstance(value, str) else value for value in arguments]
    if getattr(libc, name)(*given) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def main() -> None:
    """Build the walls where nobody has, and run the program inside them."""
    building = sys.argv[1] == "namespaces"
    try:
        if building:
            call("unshare", NAMESPACES)
            say("")
        order = json.loads(sys.stdin.buffer.readline())
        if building:
            if first := os.fork():
                os.waitpid(first, 0)
                os._exit(0)
            call("prctl", DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            walls(order["shown"], order["file_bytes"])
        supervise(order)
    except OSError as error:
        say(str(error.strerror))
        os._exit(1)


def say(line: str) -> None:
    os.write(2, f"{line}\n".encode())


def walls(shown: list[str], tmp_bytes: int) -> None:
    """Leave this process a file system of its own: what is shown, read-only, and a bounded empty /tmp."""
    os.umask(0o022)
    call("mount", None, "/", None, PRIVATE, None)
    call("mount", "tmpfs", "/tmp", "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    os.chdir("/tmp")
    old = Path("/old")
    Path("old").mkdir()
    call("pivot_root", ".", "old")
    os.chdir("/")
    for path in map(Path, (*shown, *DEVICES)):
        show(old / path.relative_to("/"), path, RDONLY | NOSUID | (0 if str(path) in DEVICES else NODEV))
    for folder in ("/proc", "/tmp"):
        Path(folder).mkdir()
    call("mount", "proc", "/proc", "proc", NOSUID | NODEV | NOEXEC, None)
    call("mount", "tmpfs", "/tmp", "tmpfs", NOSUID | NODEV, f"size={tmp_bytes},mode=1777")
    Path("/dev/shm").symlink_to("/tmp")
    call("umount2", "/old", DETACH)
    old.rmdir()
    protect("/", RDONLY | NOSUID | NODEV, 0)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def show(old: Path, new: Path, flags: int) -> None:
    """Put a file or folder of the old root into the new one."""
    new.parent.mkdir(parents=True, exist_ok=True)
    if old.is_symlink():
        new.symlink_to(old.readlink())
        return
    if old.is_dir():
        new.mkdir()
    else:
        new.touch()
    call("mount", str(old), str(new), None, BIND, None)
    protect(str(new), flags, RECURSIVE)


def protect(path: str, flags: int, how: int) -> None:
    """Set flags of a mount, and of all mounts in it where it is recursive."""
    settings = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    call("syscall", MOUNT_SETATTR, AT_FDCWD, path, how, settings, ctypes.sizeof(settings))


def supervise(order: dict[str, Any]) -> None:
    """Run the program, watch it, say the verdict and end; what is left of it ends with this process."""
    call("prctl", DUMPABLE, 0, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    token = os.urandom(16).hex().encode()
    hears, speaks = os.pipe()
    say("ready")
    began = time.monotonic()
    program = os.fork()
    if not program:
        try:
            perform(order, speaks, token)
        finally:
            os._exit(1)
    os.close(speaks)
    outcome, error = watch(program, order, began) or judged(program, hears, token)
    seconds = time.monotonic() - began
    say(json.dumps({"outcome": outcome, "error": error, "seconds": seconds}))
    os._exit(0)


ended: dict[int, int] = {}
"""Status by process."""


def watch(program: int, order: dict[str, Any], began: float) -> tuple[str, str] | None:
    """Wait until the program ends, or say which limit it broke."""
    asker = select.poll()
    asker.register(0, 0)
    while True:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
            if found[0] == program:
                return None
        if time.monotonic() - began >= order["seconds"]:
            return "timed_out", f"it ran for more than {order['seconds']:g} seconds"
        if memory_held() > order["memory_bytes"]:
            return "out_of_memory", "its processes held more memory than all may together"
        files = os.statvfs("/tmp")
        if files.f_files - files.f_ffree > order["files"]:
            return "killed", f"it made more than {order['files']} files"
        if asker.poll(TICK_MS):
            os._exit(1)


def memory_held() -> int:
    """Return the bytes of memory that the program's processes hold, shared ones counted with each."""
    held = 0
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and process.name != "1":
            with suppress(OSError, IndexError):  # it has ended
                held += int((process / "statm").read_text().split()[1]) * resource.getpagesize()
    segments = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return held + sum(int(line.split()[RESIDENT]) for line in segments)


def judged(program: int, hears: int, token: bytes) -> tuple[str, str]:
    """Return the verdict on a program that has ended: by what it said of its end, else by how it ended."""
    os.set_blocking(hears, False)
    try:
        said = os.read(hears, 2 * LONGEST)
    except BlockingIOError:
        said = b""
    if said == token:
        return "passed", ""
    kind, _, text = said.decode("utf-8", "replace").partition(":")
    if kind in ("failed", "out_of_memory"):
        return kind, text
    status = ended[program]
    if not os.WIFSIGNALED(status):
        return "failed", f"it ended with exit code {os.WEXITSTATUS(status)} before its tests did"
    number = os.WTERMSIG(status)
    if number == signal.SIGXCPU:
        return "timed_out", "it used more processor time than it may"
    return "killed", f"ended by {signal.Signals(number).name if number < 32 else f'signal {number}'}"


def perform(order: dict[str, Any], speaks: int, token: bytes) -> None:
    """Run the program text in this process, and say the token if control comes back from its last line.

    All that is needed afterwards is held before: what the program does to modules changes nothing here.
    """
    write, leave, process, own = os.write, os._exit, os.getpid, os.getpid()
    try:
        confine(order)
    except OSError as error:
        write(speaks, f"failed:it cannot be confined: {error}".encode())
        leave(1)
    module = types.ModuleType("__main__")
    sys.modules["__main__"], sys.argv = module, ["program"]
    last_line, error_type = traceback.format_exception_only, MemoryError
    try:
        exec(compile(order["program"], "<program>", "exec"), module.__dict__)
        said = token
    except error_type:
        said = b"out_of_memory:MemoryError"
    except BaseException as error:
        said = f"failed:{last_line(error)[-1].strip()[:LONGEST]}".encode("utf-8", "replace")
    if process() == own:
        write(speaks, said)
    leave(0)


def confine(order: dict[str, Any]) -> None:
    """Give up what this process can do, for good."""
    os.setsid()
    empty = os.open("/dev/null", os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(1, 2)
    os.close(empty)
    os.chdir("/tmp")
    os.umask(0o077)
    for name, value in order["limits"].items():
        kind = getattr(resource, name)
        most = resource.getrlimit(kind)[1]
        limit = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (limit, limit))
    if user := order["user"]:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    version, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call("capset", version, none)
    call("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call("prctl", DUMPABLE, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    main()
