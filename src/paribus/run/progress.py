"""Following the progress lines that workers write, while they write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class ProgressReader:
    """Reads what was added to one `progress.jsonl` since it last looked; an unfinished line waits.

    `share` is the part of the optimizer steps that is done.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.share = 0.0

    def latest(self) -> list[dict[str, Any]]:
        """Return the newest line as a list of one: phase, step, steps, loss; empty where nothing is new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.splitlines()
        if not lines:
            return []
        line = json.loads(lines[-1])
        if not line["phase"].startswith("scoring"):
            self.share = line["step"] / line["steps"] if line["steps"] else 0.0
        return [{name: line[name] for name in ("phase", "step", "steps", "loss")}]
