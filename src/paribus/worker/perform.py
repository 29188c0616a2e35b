"""Perform one trial: load, apply the techniques, train, score, and collect the evidence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from paribus.plan.trial import Job, Trial
from paribus.record.result import (
    Cost,
    Counts,
    Finished,
    HeldoutScore,
    Identity,
    Outcome,
    OutOfMemory,
    Unsupported,
)
from paribus.score.heldout import Scorer
from paribus.sources.load import load_splits
from paribus.sources.models import locate
from paribus.techniques import Live, NoEffect
from paribus.techniques.tuning import weights
from paribus.train.data import Encoded, encode, load_tokenizer
from paribus.train.model import load_model
from paribus.train.reading import Reader
from paribus.train.session import Trained, optimizer_steps, train
from paribus.worker import unchanged
from paribus.worker.keep import Keeper


@dataclass(frozen=True)
class Progress:
    """Where a trial stands: phase (loading, training, done), optimizer steps done and to do, last loss."""

    phase: str
    step: int
    steps: int
    loss: float | None


@dataclass(frozen=True)
class Performed:
    """What a trial gave; everything but the outcome is absent where the trial did not get that far.

    `proof` is each technique's evidence by axis, `steps` a row for each optimizer step (step, epoch, loss,
    grad_norm, learning_rate, tokens, target_tokens), `items` rows of single examples by score id (step,
    split, group, example_id, loss_sum, targets, correct).
    """

    outcome: Outcome
    resolved: dict[str, Any] = field(default_factory=dict)
    counts: Counts | None = None
    identity: Identity | None = None
    cost: Cost | None = None
    proof: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    steps: list[dict[str, Any]] = field(default_factory=list)
    scores: tuple[HeldoutScore, ...] = ()
    items: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass
class _Phase:
    """What is going on, for the words of an out-of-memory outcome."""

    now: str = "loading"


@dataclass(frozen=True)
class _Loaded:
    model: Any
    train: list[Encoded]
    scorers: dict[str, Scorer]
    pad_token_id: int
    base: Path
    warnings: tuple[str, ...] = ()


def perform(job: Job, base: Path, scratch: Path, progress: Callable[[Progress], None]) -> Performed:
    """Run a job to its end. Relative paths of the study start at `base`; weights may go to `scratch`.

    A technique without effect becomes Unsupported, exhausted memory OutOfMemory, a loss or gradient that is
    not finite Diverged; any other error is raised. One CPU thread computes, so that a rerun is identical.
    """
    phase = _Phase()
    try:
        with _one_thread():
            progress(Progress("loading", 0, 0, None))
            return _trained(job, _load(job, base), scratch, progress, phase)
    except NoEffect as found:
        return Performed(Unsupported(technique=found.technique, reason=found.reason, way_out=found.way_out))
    except (MemoryError, RuntimeError) as error:
        full = out_of_memory(error, phase.now)
        if full is None:
            raise
        return Performed(full)


def _load(job: Job, base: Path) -> _Loaded:
    trial = job.trial
    files = locate(trial.model, base)
    tokenizer = load_tokenizer(files)
    splits = load_splits(trial.data, base)
    unchanged.check(job, files, splits)
    length = trial.training.max_length

    def encoded(groups: dict[str, Any]) -> dict[str, list[Encoded]]:
        return {group: encode(found, tokenizer, trial.data, length) for group, found in groups.items()}

    rows = encode(splits.train, tokenizer, trial.data, length)
    validation, test = encoded(splits.validation), encoded(splits.test)
    scorers = {
        trial.score_id(setting): Scorer(setting, rows, {"validation": validation, "test": test})
        for setting in job.scores
    }
    pad = tokenizer.pad_token_id
    model = load_model(files, trial.model.load_dtype)
    left_out = _left_out(len(splits.train), len(rows))
    return _Loaded(model, rows, scorers, 0 if pad is None else pad, base, left_out)


def _left_out(planned: int, used: int) -> tuple[str, ...]:
    """Say so where examples were left out because truncation took every target of theirs."""
    if planned == used:
        return ()
    return (
        f"{planned - used} of {planned} training examples have no target within max_length and were left out",
    )


def _trained(
    job: Job, loaded: _Loaded, scratch: Path, progress: Callable[[Progress], None], phase: _Phase
) -> Performed:
    trial = job.trial
    steps = optimizer_steps(trial.training, len(loaded.train))
    live = Live(seed=trial.seed, steps=steps, folder=loaded.base)
    keeper = Keeper(job.keep, scratch)
    with ExitStack() as stack:
        phase.now = "applying techniques"
        model: Any = loaded.model
        for technique in trial.techniques.values():
            model = stack.enter_context(technique.applied(model, live))
        readers = [
            Reader(scorer.setting.every, _reading(scorer, model, keeper, phase))
            for scorer in loaded.scorers.values()
        ]
        phase.now = "training"
        result = train(
            model,
            loaded.train,
            trial.training,
            live,
            techniques=tuple(trial.techniques.values()),
            pad_token_id=loaded.pad_token_id,
            readers=readers,
            listener=lambda step, steps, loss: progress(Progress("training", step, steps, loss)),
            folder=scratch,
        )
        proof = _proof(trial, model, live, result)
        identity = _identity(model, live, result)
        keeper.last(model)
        resolved = result.resolved | _resolved(model)
    progress(Progress("done", len(result.curve), result.resolved["steps"], result.curve[-1]["loss"]))
    return Performed(
        outcome=result.diverged or Finished(),
        resolved=resolved,
        counts=result.counts,
        identity=identity,
        cost=result.cost,
        proof=proof,
        warnings=loaded.warnings + result.warnings,
        steps=result.curve,
        scores=tuple(scorer.score(job.trial_id, key) for key, scorer in loaded.scorers.items()),
        items={key: scorer.items() for key, scorer in loaded.scorers.items()},
    )


def _reading(scorer: Scorer, model: Any, keeper: Keeper, phase: _Phase) -> Callable[[int, float], None]:
    def read(step: int, epoch: float) -> None:
        phase.now = "scoring"
        scorer.read(model, step, epoch)
        phase.now = "training"
        if step > 0:
            keeper.offer(model, scorer.pooled_validation_loss(step))

    return read


def _proof(trial: Trial, model: Any, live: Live, result: Trained) -> dict[str, dict[str, Any]]:
    """Ask each technique for its evidence; a diverged run may have ended before there was any."""
    proof = {}
    for axis, technique in trial.techniques.items():
        try:
            proof[axis] = technique.proof(model, live)
        except NoEffect as found:
            if result.diverged is None:
                raise
            proof[axis] = {"none": found.reason}
    return proof


def _identity(model: Any, live: Live, result: Trained) -> Identity:
    names = weights.trainable(model)
    final = live.observed.get("final_weights") or weights.digests(model)
    return Identity(
        order_sha256=result.order_sha256,
        initial_weights_sha256=weights.combined(live.observed["initial_weights"], names),
        final_weights_sha256=weights.combined(final, names),
        loss_curve_sha256=result.curve_sha256,
    )


def _resolved(model: Any) -> dict[str, Any]:
    """Say what a study leaves open and the libraries decided; scoring is in the loaded dtype, unrounded."""
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return {
        "parameter_dtype": dtype,
        "scoring": f"{dtype} weights; no noise, rounding or autocast; losses in float32, sums in float64",
        "attention": model.config._attn_implementation,
        "architecture": type(getattr(model, "get_base_model", lambda: model)()).__name__,
    }


def out_of_memory(error: BaseException, phase: str) -> OutOfMemory | None:
    """Recognise exhausted memory on a GPU or CPU and read the sizes from its words; None for other errors."""
    words = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        asked = re.search(r"Tried to allocate ([\d.]+) (\w+)", words)
        limit = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None
        unit = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
        size = int(float(asked[1]) * unit[asked[2]]) if asked and asked[2] in unit else None
        return OutOfMemory(phase=phase, requested_bytes=size, limit_bytes=limit)
    if isinstance(error, MemoryError):
        return OutOfMemory(phase=phase)
    if "DefaultCPUAllocator" in words:
        asked = re.search(r"tried to allocate (\d+) bytes", words)
        return OutOfMemory(phase=phase, requested_bytes=int(asked[1]) if asked else None)
    return None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sum in one order: with more threads a rerun would differ in its last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
