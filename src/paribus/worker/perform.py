"""Perform one trial: load, apply the techniques, train, score, and collect the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paribus.errors import ModelError
from paribus.plan.trial import CHECKPOINTS, Job, Trial, identity
from paribus.record.result import (
    Cost,
    Counts,
    Finished,
    HeldoutScore,
    Identity,
    Outcome,
    Unsupported,
)
from paribus.score.heldout import Scorer
from paribus.sources.examples import Example, shared_prompts
from paribus.sources.load import load_splits
from paribus.sources.models import locate
from paribus.techniques import Live, NoEffect
from paribus.techniques.tuning import weights
from paribus.train import classifier
from paribus.train.checkpoint import Checkpoints
from paribus.train.data import Encoded, encode, load_tokenizer
from paribus.train.memory import out_of_memory
from paribus.train.model import starting_model
from paribus.train.objective import objective
from paribus.train.reading import Reader
from paribus.train.session import Trained, optimizer_steps, train
from paribus.worker import unchanged
from paribus.worker.keep import Keeper
from paribus.worker.limit import limit_bytes, limited


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
    shared: dict[str, int]
    warnings: tuple[str, ...] = ()


def perform(job: Job, base: Path, scratch: Path, progress: Callable[[Progress], None]) -> Performed:
    """Run a job to its end. Relative paths of the study start at `base`; weights may go to `scratch`.

    A technique without effect becomes Unsupported, exhausted memory OutOfMemory, a loss or gradient that is
    not finite Diverged; any other error is raised. One CPU thread computes, so that a rerun is identical.
    """
    phase = _Phase()
    try:
        with _one_thread(), limited(job.memory_gib):
            progress(Progress("loading", 0, 0, None))
            return _trained(job, _load(job, base), scratch, progress, phase)
    except NoEffect as found:
        return Performed(Unsupported(technique=found.technique, reason=found.reason, way_out=found.way_out))
    except (MemoryError, RuntimeError, ModelError) as error:
        full = out_of_memory(error, phase.now)
        if full is None:
            raise
        limit = limit_bytes(job.memory_gib)
        return Performed(full if limit is None else full.model_copy(update={"limit_bytes": limit}))


def _load(job: Job, base: Path) -> _Loaded:
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
    return _Loaded(model, rows, scorers, 0 if pad is None else pad, base, shared, left_out)


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
    keeper = Keeper(job, scratch, steps)
    with ExitStack() as stack:
        phase.now = "applying techniques"
        model: Any = loaded.model
        for technique in trial.techniques.values():
            model = stack.enter_context(technique.applied(model, live))
        as_trained = partial(_as_trained, trial, model, live)
        readers = [
            Reader(scorer.setting.every, _reading(scorer, model, keeper, phase, as_trained))
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
            objective=objective(trial.task, trial.training.padding_free),
            checkpoints=_checkpoints(job, loaded, keeper, scratch),
        )
        proof = _proof(trial, model, live, result)
        told = [f"{axis}: {text}" for axis, found in proof.items() for text in found.pop("warnings", ())]
        identity = _identity(model, live, result)
        keeper.end(model, len(result.curve))
        if keeper.saved_bytes is not None and result.diverged is None:
            proof["tuning"]["saved_bytes"] = keeper.saved_bytes
        resolved = result.resolved | _resolved(model)
    progress(Progress("done", len(result.curve), result.resolved["steps"], result.curve[-1]["loss"]))
    return Performed(
        outcome=result.diverged or Finished(),
        resolved=resolved,
        counts=result.counts,
        identity=identity,
        cost=result.cost,
        proof=proof,
        warnings=(*loaded.warnings, *result.warnings, *told, *keeper.warnings),
        steps=result.curve,
        scores=tuple(_score(job, key, scorer, loaded) for key, scorer in loaded.scorers.items()),
        items={key: scorer.items() for key, scorer in loaded.scorers.items()},
    )


def _score(job: Job, key: str, scorer: Scorer, loaded: _Loaded) -> HeldoutScore:
    """Return a score, with how many of the prompts it is read on were trained on."""
    score = scorer.score(job.trial_id, key)
    groups = {reading.group for reading in score.curve if reading.split == "test"}
    shared = {group: count for group, count in loaded.shared.items() if group in groups}
    return score.model_copy(update={"shared_prompts": shared})


def _checkpoints(job: Job, loaded: _Loaded, keeper: Keeper, scratch: Path) -> Checkpoints | None:
    """Say where a job's checkpoints stand; one that was read or kept otherwise is none of this job's."""
    if job.checkpoint_every is None:
        return None
    key = identity({"trial": job.trial_id, "scores": [*loaded.scorers], "keep": job.keep})
    parts = {**loaded.scorers, "keeper": keeper}
    return Checkpoints(scratch / CHECKPOINTS, job.checkpoint_every, key, parts)


@contextmanager
def _as_trained(trial: Trial, model: Any, live: Live) -> Iterator[None]:
    """Have a model compute as the trial's techniques have it compute in training."""
    with ExitStack() as stack:
        for technique in trial.techniques.values():
            stack.enter_context(technique.as_trained(model, live))
        yield


def _reading(
    scorer: Scorer,
    model: Any,
    keeper: Keeper,
    phase: _Phase,
    as_trained: Callable[[], AbstractContextManager[None]],
) -> Callable[[int, float], None]:
    def read(step: int, epoch: float) -> None:
        phase.now = "scoring"
        scorer.read(model, step, epoch, as_trained)
        phase.now = "training"
        if step > 0:
            keeper.offer(model, step, scorer.pooled_validation_loss(step))

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
    if trial.task == "classification":
        proof["model.classifier_norm"] = classifier.evidence(model, live.observed)
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
    whole = getattr(model, "get_base_model", lambda: model)()
    return {
        "parameter_dtype": dtype,
        "scoring": f"{dtype} weights; no noise, rounding or autocast; losses in float32, sums in float64",
        "attention": model.config._attn_implementation,
        "architecture": getattr(whole, "architecture", type(whole).__name__),
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sum in one order: with more threads a rerun would differ in its last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
