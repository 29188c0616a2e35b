"""Score a trial that has trained already: its kept weights are loaded, and nothing is trained again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from paribus.plan.trial import Job
from paribus.record.result import Finished
from paribus.sources.models import locate
from paribus.train.data import load_tokenizer
from paribus.train.kept import Note, load_kept
from paribus.train.model import starting_model
from paribus.worker.limit import limited
from paribus.worker.perform import merged, one_thread, tell
from paribus.worker.performed import Performed, Progress
from paribus.worker.tasks import TaskScorer


def perform(job: Job, base: Path, scratch: Path, progress: Callable[[Progress], None]) -> Performed:
    """Score a job's tasks on the weights in `<scratch>/last`; the outcome that is recorded stays as it is.

    Raises ModelError where the weights are another trial's, ParibusError where the base cannot be scored.
    """
    with one_thread(), limited(job.memory_gib):
        progress(Progress("loading", 0, 0, None))
        files = locate(job.trial.model, base)
        tasks = TaskScorer(job, load_tokenizer(files), base, scratch, partial(tell, progress))
        tasks.before(starting_model(job.trial, files, classes=0))
        kept = scratch / "last"
        with load_kept(job, kept, base) as model:
            if torch.cuda.is_available():
                model.to("cuda")
            tasks.after(model, Note.read(kept).step, partial(merged, job.trial, model))
    progress(Progress("done", 1, 1, None))
    return Performed(Finished(), scores=tuple(tasks.scores), items=tasks.items)
