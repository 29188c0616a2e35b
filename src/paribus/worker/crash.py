"""Describing an error so that it can be recorded: what, where and the end of the log; no machine paths."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import TracebackType

from paribus.errors import ParibusError
from paribus.record.result import Crashed

TAIL = 1200
"""Characters of the log that a crashed result keeps."""


def crash(error: BaseException, log: str) -> Crashed:
    """Describe an error by its text, the innermost place in our code or another's, and the end of the log."""
    text = str(error) or type(error).__name__
    named = text if isinstance(error, ParibusError) else f"{type(error).__name__}: {text}"
    return Crashed(error=without_paths(named)[:TAIL], where=_where(error.__traceback__), log_tail=tail(log))


def tail(log: str) -> str:
    """Return the end of a log, without the folders that modules were imported from."""
    return without_paths(log)[-TAIL:]


def without_paths(text: str) -> str:
    """Shorten the paths of source files to what follows the folder they were imported from."""
    for root in sorted({*sys.path, sys.prefix, str(Path.home())} - {"", "/"}, key=len, reverse=True):
        text = text.replace(root.rstrip("/") + "/", "")
    return text


def _where(trace: TracebackType | None) -> str:
    frames = traceback.extract_tb(trace)
    if not frames:
        return "worker"
    return without_paths(f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}")
