"""What is slow to make is kept in one folder outside every study, by content, and never as a pickle.

The folder is named by `PARIBUS_CACHE` and is `~/.cache/paribus` without it. It can be deleted at any time.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paribus.errors import ParibusError


def cache_folder(name: str) -> Path:
    """Return a folder of the cache, made where it is missing; raises ParibusError where it cannot be."""
    root = Path(os.environ.get("PARIBUS_CACHE") or Path.home() / ".cache" / "paribus").expanduser()
    try:
        (root / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ParibusError(
            f"the cache folder {root} cannot be written: {error.strerror}.",
            way_out="Set the environment variable PARIBUS_CACHE to a folder that can.",
        ) from error
    return root / name


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader, and a second writer, see all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remembered(name: str, key: str, compute: Callable[[], Any]) -> Any:
    """Return a JSON value from the cache, computed and kept the first time, and again where it is damaged."""
    path = cache_folder(name) / f"{key}.json"
    if path.exists():
        try:
            return json.loads(path.read_bytes())
        except (ValueError, OSError):
            path.unlink(missing_ok=True)
    value = compute()
    write_whole(path, json.dumps(value, ensure_ascii=False).encode())
    return value
