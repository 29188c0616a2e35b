"""Errors a user can act on: each names the value, the rule and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MOST_LISTED = 24
"""Names in one message, so that a folder of a thousand files does not hide what was meant."""


@dataclass(frozen=True)
class Place:
    """Where in a file something was written: the path and, where known, the line counted from 1."""

    path: Path | str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else str(self.path)


class ParibusError(Exception):
    """What a user wrote or has cannot be used as it is; nothing was started and nothing was lost.

    `message` names the value and the rule, `way_out` what to do, `place` the file and line.
    The command line prints these three and exits 2; no traceback is shown.
    """

    def __init__(self, message: str, *, way_out: str | None = None, place: Place | None = None) -> None:
        self.message, self.way_out, self.place = message, way_out, place
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.message}" + (f"\n  {self.way_out}" if self.way_out else "")


class StudyError(ParibusError):
    """A study file says something that cannot be planned."""


class SettingError(ValueError):
    """A setting cannot have its value; raised by a check of settings, shown with file, line and `way_out`."""

    def __init__(self, message: str, way_out: str | None = None) -> None:
        super().__init__(message)
        self.way_out = way_out


class DataError(ParibusError):
    """A data set is missing, empty or malformed; the message names the row and the field."""


class ModelError(ParibusError):
    """A model or its tokenizer is missing something a study needs."""


class RecordError(ParibusError):
    """A results folder cannot be read or written."""


class ChangedStudyError(StudyError):
    """A study changed a fixed value under existing results, so that every trial would be renamed."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Say what was probably meant and what exists: `Did you mean 'lora'? Available: bitfit, full, lora.`"""
    names = sorted(set(valid))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Available: {listed(names)}."


def listed(names: Iterable[str]) -> str:
    """Join sorted names by commas; of many the first, with how many more there are."""
    known = sorted(names)
    more = len(known) - MOST_LISTED
    return ", ".join(known[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
