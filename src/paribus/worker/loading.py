"""What a trial starts from: its model, its encoded examples and the scorers of its held-out loss."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.plan.trial import Job
from paribus.score.heldout import Scorer
from paribus.sources.examples import Example, shared_prompts
from paribus.sources.load import load_splits
from paribus.sources.models import locate
from paribus.train.data import Encoded, encode, load_tokenizer
from paribus.train.model import starting_model
from paribus.worker import unchanged


@dataclass(frozen=True)
class Loaded:
    """What was loaded; `shared` counts the test prompts of each group that are trained on too."""

    model: Any
    tokenizer: Any
    train: list[Encoded]
    scorers: dict[str, Scorer]
    pad_token_id: int
    base: Path
    shared: dict[str, int]
    warnings: tuple[str, ...] = ()


def load(job: Job, base: Path) -> Loaded:
    """Load what a job names, and make sure that it is what the job was planned on."""
    trial = job.trial
    files = locate(trial.model, base)
    tokenizer = load_tokenizer(files)
    splits = load_splits(trial.data, base, trial.task)
    unchanged.check(job, files, splits, base)

    def encoded(found: Iterable[Example]) -> list[Encoded]:
        length = trial.training.max_length
        return encode(found, tokenizer, trial.data, length, trial.task, splits.classes)

    rows = encoded(splits.train)
    held: Any = {
        split: {group: encoded(found) for group, found in getattr(splits, split).items()}
        for split in ("validation", "test")
    }
    scorers = {
        trial.score_id(setting): Scorer(setting, rows, held, task=trial.task) for setting in job.scores
    }
    pad = tokenizer.pad_token_id
    model = starting_model(trial, files, len(splits.classes))
    left_out = _left_out(len(splits.train), len(rows))
    shared = shared_prompts(splits)
    return Loaded(model, tokenizer, rows, scorers, 0 if pad is None else pad, base, shared, left_out)


def _left_out(planned: int, used: int) -> tuple[str, ...]:
    """Say so where examples were left out because truncation took every target of theirs."""
    if planned == used:
        return ()
    return (
        f"{planned - used} of {planned} training examples have no target within max_length and were left out",
    )
