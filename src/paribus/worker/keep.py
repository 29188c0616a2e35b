"""Weights that a study keeps: written to the scratch folder as safetensors, never into the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal


class Keeper:
    """Saves the model at its best reading and at its end, as far as the study's `keep` wants them.

    `adapter` and `last` save the end, `best` the reading of least validation loss over all groups, `all`
    both; of an adapter method only the adapter is written. Folders: `<scratch>/last`, `<scratch>/best`.
    """

    def __init__(self, keep: Literal["none", "adapter", "best", "last", "all"], scratch: Path) -> None:
        self.keep, self.scratch = keep, scratch
        self._least: float | None = None

    def offer(self, model: Any, validation_loss: float | None) -> None:
        """Save the model as the best so far if it is; without validation there is no best."""
        if self.keep not in ("best", "all") or validation_loss is None:
            return
        if self._least is None or validation_loss < self._least:
            self._least = validation_loss
            _save(model, self.scratch / "best")

    def last(self, model: Any) -> None:
        """Save the model at its end."""
        if self.keep in ("adapter", "last", "all"):
            _save(model, self.scratch / "last")


def _save(model: Any, folder: Path) -> None:
    """Save as safetensors; an adapter without asking a hub whether its base had other embeddings."""
    adapter = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
    model.save_pretrained(folder, **adapter)
