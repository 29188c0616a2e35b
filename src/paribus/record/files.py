"""Files that are whole or absent: written aside, forced to disk, then given their name in one atomic step."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from paribus.errors import Place, RecordError

TEMPORARY = ".tmp-"
"""How the name of a file begins that is not yet published."""

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


def publish(path: Path, data: bytes) -> bool:
    """Give `data` its final name; False where that name is taken, and then nothing has changed.

    The name appears with the whole content on disk or not at all, whenever the process dies. Raises
    RecordError where the folder cannot be written or is full.
    """
    with recording(path):
        aside = _write_aside(path, data)
        try:
            fault_point("before_link", path)
            os.link(aside, path)
            fault_point("after_link", path)
        except FileExistsError:
            return False
        finally:
            aside.unlink(missing_ok=True)
        fsync_folder(path.parent)
    return True


def replace(path: Path, data: bytes) -> None:
    """Write a file that may exist, in one atomic step."""
    with recording(path):
        aside = _write_aside(path, data)
        aside.replace(path)
        fsync_folder(path.parent)


def _write_aside(path: Path, data: bytes) -> Path:
    """Write to a temporary file in the folder of `path` and force it to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}-{path.name}")
    try:
        with aside.open("xb") as file:
            file.write(data)
            file.flush()
            fault_point("before_fsync", path)
            os.fsync(file.fileno())
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return aside


def left_over(folder: Path) -> list[Path]:
    """List the temporary files of writers, alive or killed, in a trial's folder and the two levels below."""
    return [path for depth in ("", "*/", "*/*/") for path in folder.glob(f"{depth}{TEMPORARY}*")]


def sweep(folder: Path, older_than: float = 0) -> None:
    """Remove temporary files that killed writers left, that old in seconds; at 0 nobody may be writing."""
    for path in left_over(folder):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime >= older_than:
                path.unlink()


def fsync_folder(folder: Path) -> None:
    """Force the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def take_lock(path: Path, create: bool = False) -> int | None:
    """Take an exclusive lock on a file and return its descriptor; None where another process holds it.

    The lock belongs to the open file: it is free when every process that was handed the descriptor has
    closed it or is gone, however it went. Raises FileNotFoundError where there is no such file.
    """
    handle = _opened(path, create)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    return handle


def _opened(path: Path, create: bool) -> int:
    """Open for writing, which locks over NFS need; where that is not allowed, for reading."""
    try:
        return os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o644)
    except OSError as error:
        if create or error.errno not in DENIED:
            raise
        return os.open(path, os.O_RDONLY)


def to_json(value: BaseModel | dict[str, Any]) -> bytes:
    """Write JSON a reader can diff: one space of indent, UTF-8, null where a figure is not a number."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return (json.dumps(finite(plain), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def finite(value: Any) -> Any:
    """Return a JSON value in which what is not a finite number is absent (null)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


@contextlib.contextmanager
def recording(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into a RecordError that names the file and the way out."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            rule, way_out = "no space is left", "Free some space and run the same command again."
        elif error.errno in DENIED:
            rule, way_out = (
                "it may not be written",
                "Make it writable, or choose another folder with --results.",
            )
        else:
            rule, way_out = (error.strerror or str(error)).lower(), "Choose another folder with --results."
        raise RecordError(
            f"results cannot be recorded: {rule}", place=Place(path), way_out=way_out
        ) from error


def out_of_space(error: BaseException) -> bool:
    """Say whether an error, or what caused it, is a full disk; safetensors puts the number in words."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError):
        return cause.errno in NO_SPACE
    return any(f"(os error {number})" in str(error) for number in NO_SPACE)


def fault_point(name: str, path: Path | None = None) -> None:
    """Fail here on request: named points at which the fault tests kill this process or fill its disk.

    `PARIBUS_FAULT=ACTION:ROLE:POINT:FILE`, with wildcards in the last three: ACTION is `kill` or an errno
    name such as `ENOSPC`; ROLE is `worker` or `supervisor`. With `PARIBUS_FAULT_ONCE=PATH` it happens to
    whoever creates that file first. Without the variable nothing happens.
    """
    wanted = os.environ.get("PARIBUS_FAULT")
    if not wanted:
        return
    action, pattern = wanted.split(":", 1)
    here = f"{os.environ.get('PARIBUS_ROLE', 'supervisor')}:{name}:{path.name if path else ''}"
    if not fnmatch.fnmatchcase(here, pattern) or not _first_to_fail():
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(getattr(errno, action), os.strerror(getattr(errno, action)))


def _first_to_fail() -> bool:
    once = os.environ.get("PARIBUS_FAULT_ONCE")
    if once is None:
        return True
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False
    return True
