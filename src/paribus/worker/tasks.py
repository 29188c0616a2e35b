"""Scoring beside held-out loss: the base model once for a study, the trained model once for a trial.

What the base gave is kept in the cache under all it depends on, so that every trial has it without computing
it again. Scoring goes on where it was interrupted. What cannot be scored of the base stops a trial before it
trains; what cannot be scored of the trained model is said in the score, and no training is lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch
from filelock import FileLock

from paribus.errors import ParibusError
from paribus.plan.trial import SCORING, Job, identity
from paribus.record.result import Figure, TaskScore
from paribus.score import tasks
from paribus.score.blocks import Blocks
from paribus.score.subject import Scored, Subject
from paribus.sources.cache import cache_folder, write_whole
from paribus.techniques.tuning import weights

LIBRARIES: Final = ("torch", "transformers", "peft", "lm-eval", "evaluate", "paribus")

Told = Callable[[str, int, int], None]
"""Called with the name of a task, how many of its items are done, and of how many."""


@dataclass
class TaskScorer:
    """Scores a job's tasks: `before` on the base model, `after` on the trained one, whose scores it keeps."""

    job: Job
    tokenizer: Any
    base: Path
    scratch: Path
    tell: Told = lambda name, done, of: None
    scores: list[TaskScore] = field(default_factory=list)
    items: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _base: dict[str, Scored] = field(default_factory=dict)

    @cached_property
    def reads(self) -> dict[str, str]:
        """Check what each task reads and hash it, by the task's name."""
        return {setting.name: tasks.check(setting, self.base) for setting in self.job.tasks}

    def before(self, model: Any) -> None:
        """Score the base model as it was loaded, or read what it gave before; raises ParibusError."""
        if self.job.tasks and torch.cuda.is_available():
            model.to("cuda")
        for setting in self.job.tasks:
            folder = cache_folder("base_scores") / self._base_id(setting)
            folder.mkdir(exist_ok=True)
            with FileLock(folder / "lock"):
                found = _read(folder / "scored.json")
                if found is None:
                    found = self._score(setting, model, 0, Blocks(folder / "blocks"), folder)
                    write_whole(folder / "scored.json", json.dumps(_plain(found)).encode())
            self._base[setting.name] = found

    def after(self, model: Any, step: int, merged: Callable[[], Any] = lambda: None) -> None:
        """Score the trained model; an error is a warning in the score, which then has the base alone."""
        digest = weights.combined(weights.digests(model), weights.trainable(model)) if self.job.tasks else ""
        for setting in self.job.tasks:
            score_id, began = self.job.trial.score_id(setting), time.monotonic()
            blocks = Blocks(self.scratch / SCORING / f"{score_id}-{digest[:16]}-{_libraries()}")
            texts = self.scratch.parent / "texts" / self.job.trial_id
            base = self._base[setting.name]
            try:
                found = self._score(setting, model, step, blocks, texts, merged)
            except ParibusError as error:
                found = Scored((), warnings=(f"the trained model could not be scored: {error.message}",))
            self.items[score_id] = [{"step": 0, **row} for row in base.items]
            self.items[score_id] += [{"step": step, **row} for row in found.items]
            self.scores.append(
                TaskScore(
                    score_id=score_id,
                    trial_id=self.job.trial_id,
                    name=setting.name,
                    setting=setting.model_dump(mode="json"),
                    figures=(*base.figures, *found.figures),
                    counts=found.counts,
                    base_counts=base.counts,
                    seconds=time.monotonic() - began,
                    reads_sha256=self.reads[setting.name],
                    warnings=tuple(dict.fromkeys((*base.warnings, *found.warnings))),
                )
            )

    def _score(
        self,
        setting: Any,
        model: Any,
        step: int,
        blocks: Blocks,
        texts: Path,
        merged: Callable[[], Any] = lambda: None,
    ) -> Scored:
        subject = Subject(
            model=model,
            tokenizer=self.tokenizer,
            base=self.base,
            step=step,
            blocks=blocks,
            texts=texts,
            allow_code_execution=self.job.allow_code_execution,
            merged=merged,
            tell=lambda done, of: self.tell(setting.name, done, of),
        )
        with _evaluating(model):
            return tasks.score(setting, subject)

    def _base_id(self, setting: Any) -> str:
        trial = self.job.trial
        known = {
            "model": trial.content.model_sha256,
            "shaping": trial.model.shaping(),
            "drawn": trial.seed if trial.task == "pretrain" else None,
            "setting": setting.canonical(),
            "reads": self.reads[setting.name],
            "libraries": _libraries(),
        }
        return identity(known)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Have a model in evaluation mode without gradients, and put back the mode of each of its modules."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before.items():
            module.training = training


def _libraries() -> str:
    """Hash the versions of all that computes a score."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return identity(found)[:8]


def _plain(scored: Scored) -> dict[str, Any]:
    return asdict(scored) | {"figures": [figure.model_dump() for figure in scored.figures]}


def _read(path: Path) -> Scored | None:
    """Read what was scored before; None where it is not there or damaged."""
    try:
        found = json.loads(path.read_bytes())
        figures = tuple(Figure(**figure) for figure in found.pop("figures"))
        return Scored(figures, **found | {"warnings": tuple(found["warnings"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
