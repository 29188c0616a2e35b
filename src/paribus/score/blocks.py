"""Scoring in blocks of items, each kept as it ends: an interrupted scoring goes on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Blocks:
    """A folder of finished blocks; without a folder nothing is kept.

    The folder's name must be of all that decides what a block holds: weights, scoring setting, libraries.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def rows(
        self,
        name: str,
        items: Sequence[T],
        size: int,
        do: Callable[[Sequence[T]], list[dict[str, Any]]],
        tell: Callable[[int, int], None] = lambda done, of: None,
    ) -> list[dict[str, Any]]:
        """Return `do` of all items, block by block, one row an item; blocks that are kept are not done again.

        Rows are JSON. A kept block that cannot be read, or has not one row an item, is done again.
        """
        rows: list[dict[str, Any]] = []
        for start in range(0, len(items), size):
            part = items[start : start + size]
            place = self.folder / f"{name}-{start:06d}-{len(part)}.json" if self.folder else None
            found = _read(place, len(part))
            if found is None:
                found = do(part)
                _write(place, found)
            rows += found
            tell(len(rows), len(items))
        return rows


def _read(path: Path | None, count: int) -> list[dict[str, Any]] | None:
    if path is None or not path.exists():
        return None
    try:
        rows = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return rows if isinstance(rows, list) and len(rows) == count else None


def _write(path: Path | None, rows: list[dict[str, Any]]) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}-{os.getpid()}")
    aside.write_text(json.dumps(rows), encoding="utf-8")
    aside.replace(path)
