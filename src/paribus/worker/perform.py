"""Perform one trial: load, apply the techniques, train, score, and collect the evidence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paribus.errors import ModelError
from paribus.plan.trial import CHECKPOINTS, Job, Trial, identity
from paribus.record.result import Finished, HeldoutScore, Identity, Unsupported
from paribus.score.heldout import Scorer
from paribus.techniques import Live, NoEffect
from paribus.techniques.tuning import weights
from paribus.train import classifier
from paribus.train.checkpoint import Checkpoints
from paribus.train.memory import out_of_memory
from paribus.train.objective import objective
from paribus.train.reading import Reader
from paribus.train.session import Trained, optimizer_steps, train
from paribus.worker.keep import Keeper
from paribus.worker.limit import limit_bytes, limited
from paribus.worker.loading import Loaded, load
from paribus.worker.performed import Performed, Progress
from paribus.worker.tasks import TaskScorer


@dataclass
class _Phase:
    """What is going on, for the words of an out-of-memory outcome."""

    now: str = "loading"


def perform(job: Job, base: Path, scratch: Path, progress: Callable[[Progress], None]) -> Performed:
    """Run a job to its end. Relative paths of the study start at `base`; weights may go to `scratch`.

    A technique without effect becomes Unsupported, exhausted memory OutOfMemory, a loss or gradient that is
    not finite Diverged; any other error is raised. One CPU thread computes, so that a rerun is identical.
    """
    phase = _Phase()
    try:
        with one_thread(), limited(job.memory_gib):
            progress(Progress("loading", 0, 0, None))
            loaded = load(job, base)
            tasks = TaskScorer(job, loaded.tokenizer, base, scratch, partial(tell, progress))
            phase.now = "scoring"
            tasks.before(loaded.model)
            return _trained(job, loaded, tasks, scratch, progress, phase)
    except NoEffect as found:
        return Performed(Unsupported(technique=found.technique, reason=found.reason, way_out=found.way_out))
    except (MemoryError, RuntimeError, ModelError) as error:
        full = out_of_memory(error, phase.now)
        if full is None:
            raise
        limit = limit_bytes(job.memory_gib)
        return Performed(full if limit is None else full.model_copy(update={"limit_bytes": limit}))


def tell(progress: Callable[[Progress], None], name: str, done: int, of: int) -> None:
    """Say how far the scoring of a task is."""
    progress(Progress(f"scoring {name}", done, of, None))


def _trained(
    job: Job,
    loaded: Loaded,
    tasks: TaskScorer,
    scratch: Path,
    progress: Callable[[Progress], None],
    phase: _Phase,
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
        if result.diverged is None:
            phase.now = "scoring"
            tasks.after(model, len(result.curve), partial(merged, trial, model))
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
        scores=(*(_score(job, key, one, loaded) for key, one in loaded.scorers.items()), *tasks.scores),
        items={key: scorer.items() for key, scorer in loaded.scorers.items()} | tasks.items,
    )


def _score(job: Job, key: str, scorer: Scorer, loaded: Loaded) -> HeldoutScore:
    """Return a score, with how many of the prompts it is read on were trained on."""
    score = scorer.score(job.trial_id, key)
    groups = {reading.group for reading in score.curve if reading.split == "test"}
    shared = {group: count for group, count in loaded.shared.items() if group in groups}
    return score.model_copy(update={"shared_prompts": shared})


def merged(trial: Trial, model: Any) -> Any:
    """Return a copy of a trained model with its update inside the base's weights; None where it cannot be."""
    return trial.tuning.merged(copy.deepcopy(model))


def _checkpoints(job: Job, loaded: Loaded, keeper: Keeper, scratch: Path) -> Checkpoints | None:
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
def one_thread() -> Iterator[None]:
    """Sum in one order: with more threads a rerun would differ in its last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
