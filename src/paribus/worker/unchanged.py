"""A trial trains and is scored on what was planned, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paribus.errors import DataError
from paribus.plan.trial import Content, Job
from paribus.sources.blocks import DataBlock, Task
from paribus.sources.examples import Splits, content_sha256, groups_sha256
from paribus.sources.models import ModelFiles
from paribus.sources.template import template_sha256


def content(files: ModelFiles, splits: Splits, block: DataBlock, task: Task = "instruction") -> Content:
    """Hash what a trial is about to read."""
    return Content(
        model_sha256=files.sha256,
        train_sha256=content_sha256(splits.train),
        template_sha256=template_sha256(files, block, task),
    )


def check(job: Job, files: ModelFiles, splits: Splits, base: Path) -> None:
    """Raise DataError where what is read is no longer what the trial's id was made of.

    That is the model, the examples, their template, and what techniques read; relative paths start at `base`.
    """
    if changed := [*_changes(job, files, splits), *_otherwise(job, base)]:
        raise DataError(
            f"changed since the trial was planned: {', '.join(changed)}",
            way_out="Plan again (the trial gets another id), or bring the planned files back.",
        )


def _changes(job: Job, files: ModelFiles, splits: Splits) -> Iterator[str]:
    planned, found = job.trial.content, content(files, splits, job.trial.data, job.trial.task)
    for name in ("model_sha256", "train_sha256", "template_sha256"):
        if getattr(planned, name) != getattr(found, name):
            yield {"train_sha256": "the training examples"}.get(name, f"the {name.removesuffix('_sha256')}")
    for score in job.scores:
        for split, groups in (("validation", splits.validation), ("test", splits.test)):
            scored = groups_sha256({group: groups.get(group, ()) for group in score.groups})
            if getattr(score, f"{split}_sha256") not in ("", scored):
                yield f"the {split} examples"


def _otherwise(job: Job, base: Path) -> Iterator[str]:
    for axis, sha256 in job.trial.content.techniques.items():
        if job.trial.techniques[axis].content_sha256(base) != sha256:
            yield f"what {axis} reads"
