"""Weights that a study keeps: written to the scratch folder as safetensors, never into the results."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError

from paribus.errors import ModelError
from paribus.plan.trial import Job
from paribus.record.files import TEMPORARY
from paribus.train.kept import Note

CHEAP: Final = 64 * 2**20
"""Bytes of trained weights up to which their size on disk is measured also where nothing is kept."""


class Keeper:
    """Saves what was trained at its best reading and at its end, as far as the study's `keep` wants it.

    `adapter` and `last` save the end, `best` the reading of least validation loss over all groups, `all`
    both; each way of tuning writes what it trained. Folders: `<scratch>/last`, `<scratch>/best`.
    `paribus.train.kept.load_kept` reads them back.
    """

    def __init__(self, job: Job, scratch: Path, steps: int) -> None:
        self.job, self.scratch, self.steps = job, scratch, steps
        self.saved_bytes: int | None = None
        self.warnings: list[str] = []
        self._least: float | None = None
        self._best_step: int | None = None
        for left in scratch.glob(f"{TEMPORARY}*"):
            shutil.rmtree(left, ignore_errors=True)

    def offer(self, model: Any, step: int, validation_loss: float | None) -> None:
        """Save the model as the best so far if it is; without validation there is no best."""
        if self.job.keep not in ("best", "all") or validation_loss is None:
            return
        if self._least is None or validation_loss < self._least:
            self._least, self._best_step = validation_loss, step
            self._save(model, step, "best")

    def end(self, model: Any, step: int) -> None:
        """Save the model at its end, and measure what a saved model takes on disk (`saved_bytes`)."""
        if self.job.keep in ("adapter", "last", "all"):
            self._save(model, step, "last")
        elif self.saved_bytes is None and _trained_bytes(model) <= CHEAP:
            self._measure(model)
        self._check_best()

    def state(self) -> dict[str, Any]:
        """Return what the best so far is, for a checkpoint; its weights stand in their folder."""
        return {"least": self._least, "best_step": self._best_step}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there; what was kept since will be kept again when training comes by."""
        self._least, self._best_step = state["least"], state["best_step"]

    def _save(self, model: Any, step: int, name: str) -> None:
        """Write aside, then take the place of what had the name."""
        aside = self._written(model)
        Note.of(self.job, step, self.steps).write(aside)
        shutil.rmtree(self.scratch / name, ignore_errors=True)
        aside.rename(self.scratch / name)

    def _written(self, model: Any) -> Path:
        aside = self.scratch / f"{TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}"
        try:
            aside.mkdir(parents=True)
            self.job.trial.tuning.save(model, aside)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        self.saved_bytes = sum(path.stat().st_size for path in aside.rglob("*.safetensors"))
        return aside

    def _measure(self, model: Any) -> None:
        """Write the weights and remove them; a disk that refuses leaves the size unknown, and says so."""
        try:
            shutil.rmtree(self._written(model), ignore_errors=True)
        except (OSError, SafetensorError) as error:
            self.warnings.append(f"the size of the saved weights was not measured: {error}")

    def _check_best(self) -> None:
        """Remove a best that a stopped attempt kept and this one has not come by again."""
        folder = self.scratch / "best"
        if not folder.is_dir():
            return
        try:
            kept: int | None = Note.read(folder).step
        except ModelError:
            kept = None
        if kept != self._best_step:
            shutil.rmtree(folder, ignore_errors=True)
            self.warnings.append(
                f"the best weights were kept at step {self._best_step} by an attempt that was stopped, and "
                f"overwritten at step {kept} before it; they are gone"
            )


def _trained_bytes(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
