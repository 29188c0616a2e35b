"""Weights that a study kept: described beside them, and read back into the model they are of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError

from paribus.errors import ModelError, Place
from paribus.plan.trial import Job
from paribus.record.files import to_json
from paribus.sources.load import load_splits
from paribus.sources.models import locate
from paribus.techniques import Live, Settings
from paribus.train.model import starting_model

if TYPE_CHECKING:
    import torch

NOTE: Final = "kept.json"


class Note(Settings):
    """What kept weights are of, as `kept.json` beside them.

    `step` is the optimizer step they were kept after, of `steps` in all; `tuning` the settings that decide
    which weights they are; `model_sha256` the content of the base's files.
    """

    paribus: int = 1
    trial_id: str
    step: int
    steps: int
    tuning: dict[str, Any]
    model_sha256: str

    @staticmethod
    def of(job: Job, step: int, steps: int) -> Note:
        """Describe the weights of a job."""
        return Note(
            trial_id=job.trial_id,
            step=step,
            steps=steps,
            tuning=job.trial.tuning.canonical(),
            model_sha256=job.trial.content.model_sha256,
        )

    def write(self, folder: Path) -> None:
        """Put the note beside the weights."""
        (folder / NOTE).write_bytes(to_json(self))

    @staticmethod
    def read(folder: Path) -> Note:
        """Read the note beside kept weights; raises ModelError where there is none."""
        try:
            return Note.model_validate_json((folder / NOTE).read_bytes())
        except (OSError, ValidationError) as error:
            raise ModelError(
                "these are no weights that paribus kept: there is no readable kept.json beside them",
                place=Place(folder / NOTE),
                way_out="Name the folder `last` or `best` of a trial that ran with keep.",
            ) from error


@contextmanager
def load_kept(job: Job, folder: Path, base: Path = Path()) -> Iterator[torch.nn.Module]:
    """Load a job's model with its tuning applied and its kept weights in it, in evaluation mode on the CPU.

    What a trial stores in a low format, its frozen weights among it, is stored so here too.

    Relative paths of the study start at `base`. Raises ModelError where the weights are another trial's or
    were trained on another base.
    """
    note, tuning = Note.read(folder), job.trial.tuning
    files = locate(job.trial.model, base)
    expected = Note.of(job, note.step, note.steps).model_copy(update={"model_sha256": files.sha256})
    for name in ("model_sha256", "tuning", "trial_id"):
        kept, ours = getattr(note, name), getattr(expected, name)
        if kept != ours:
            what = {"model_sha256": "base model", "tuning": "tuning", "trial_id": "trial"}[name]
            raise ModelError(
                f"these weights are of another {what}: {kept}, and not {ours}",
                place=Place(folder),
                way_out="Load them with the job (trial.json) and the model of the trial that kept them.",
            )
    labelled = job.trial.task == "classification"
    classes = load_splits(job.trial.data, base, job.trial.task).classes if labelled else ()
    model = starting_model(job.trial, files, len(classes))
    live = Live(seed=job.trial.seed, steps=note.steps, folder=base)
    master_weights = job.trial.master_weights
    with tuning.applied(model, live) as tuned, master_weights.applied(cast(Any, tuned), live) as stored:
        tuning.load(stored, folder)
        yield stored.eval()
