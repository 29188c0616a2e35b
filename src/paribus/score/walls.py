"""Starts the first process of a sandbox, behind bubblewrap's walls or ready to build its own."""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import psutil

from paribus.errors import ParibusError
from paribus.score import contained

Walls = Literal["bubblewrap", "namespaces"]
BOTH: Final[tuple[Walls, ...]] = ("bubblewrap", "namespaces")
"""In the order in which they are tried."""
MIB: Final = 2**20
SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/nix/store")
"""What a program sees of the system, where it is there."""
ENVIRONMENT: Final = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
}
"""All that a program sees of the environment; sets have one order, so that a rerun has one outcome."""
USERS: Final = range(61184, 65520)
"""Users that no person is (systemd.io/UIDS-GIDS): a program that root runs is one of these."""
PER_NAMESPACE: Final = (5, 14)
"""The Linux from which on a limit on processes counts those of one user namespace."""
CLOSING_SECONDS: Final = 5.0


def counted_before() -> int:
    """Count the threads of this user that an older Linux counts with those inside."""
    release = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    if release >= PER_NAMESPACE or os.getuid() == 0:
        return 0
    running = [process.info for process in psutil.process_iter(["uids", "num_threads"])]
    return sum(one["num_threads"] or 0 for one in running if one["uids"] and one["uids"].real == os.getuid())


def another_user() -> int | None:
    """Return a user that nobody is, for root; None for others, and for a root that can be no other user."""
    if os.getuid() != 0:
        return None
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= USERS.start and USERS.stop <= first + count:
            return secrets.choice(USERS)
    return None


def shown() -> list[str]:
    """List what a program sees, each once: the system's folders, and the interpreter with its library."""
    prefix = Path(sys.base_prefix).resolve()
    wanted = [*map(Path, SYSTEM), _interpreter().parent, *(prefix / name for name in ("bin", "lib", "lib64"))]
    found: list[Path] = []
    for path in wanted:
        if path.exists() and not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return [str(path) for path in found]


def _interpreter() -> Path:
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


@contextmanager
def started(walls: Walls, file_mib: int, user: int | None) -> Iterator[Any]:
    """Start the first process with nothing of ours but three pipes; the end of its input is its end."""
    source = Path(contained.__file__).read_text(encoding="utf-8")
    command = [str(_interpreter()), "-s", "-S", "-P", "-B", "-u", "-c", source, walls]
    if walls == "bubblewrap":
        command = [*_bubblewrap(file_mib, user), "--", *command]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]
        process.stderr.close()  # type: ignore[union-attr]


def _bubblewrap(file_mib: int, user: int | None) -> list[str]:
    """Return bubblewrap's arguments for the walls that `contained.walls` builds."""
    made = [
        "--die-with-parent",
        "--as-pid-1",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
    ]
    if user is None:
        made += ["--unshare-user", "--disable-userns"]
    else:
        made += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    paths = [Path(path) for path in shown()]
    above = {str(folder) for path in [*paths, *map(Path, contained.DEVICES)] for folder in path.parents}
    for folder in sorted(above - {"/"}):  # else they have the permissions of ours
        made += ["--perms", "0755", "--dir", folder]
    for path in paths:
        link = ["--symlink", str(path.readlink())] if path.is_symlink() else ["--ro-bind", str(path)]
        made += [*link, str(path)]
    for device in contained.DEVICES:
        made += ["--dev-bind", device, device]
    made += ["--symlink", "/tmp", "/dev/shm", "--proc", "/proc"]
    made += ["--perms", "1777", "--size", str(file_mib * MIB), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    return [str(shutil.which("bwrap")), *made, "--remount-ro", "/"]


def map_users(process: int, user: int | None) -> None:
    """Give a process with users of its own those it may be: ours and, for root, one that nobody is."""
    folder, own = Path(f"/proc/{process}"), {"uid_map": os.getuid(), "gid_map": os.getgid()}
    try:
        if user is None:
            (folder / "setgroups").write_text("deny")
        for name, number in own.items():
            more = "" if user is None else f"\n{user} {user} 1"
            (folder / name).write_text(f"{number} {number} 1{more}")
    except OSError as error:
        raise ParibusError(f"the users of a sandbox cannot be set: {error.strerror}") from error
