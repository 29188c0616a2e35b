"""Trials without training, for tests of what surrounds it: fast, watchful of overlaps, failing on request."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paribus.machine import Machine
from paribus.plan.trial import Content, Heldout, Job, Training, Trial
from paribus.record.result import Counts, Finished, HeldoutScore, Identity, OutOfMemory, Reading
from paribus.run.options import Options
from paribus.sources.blocks import EmbeddedData, EmbeddedModel
from paribus.techniques import Accumulation, Fp32, Full, Noise

BODY = "synthetic:perform"
PRELOAD = ("pyarrow.parquet", "paribus.record.store", "paribus.run.options")
MACHINE = Machine(name="test machine", memory_bytes=2**34, cores=2)


@dataclass(frozen=True)
class Progress:
    phase: str
    step: int
    steps: int
    loss: float | None


@dataclass(frozen=True)
class Performed:
    outcome: Any
    resolved: dict[str, Any] = field(default_factory=dict)
    counts: Counts | None = None
    identity: Identity | None = None
    cost: None = None
    proof: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    steps: list[dict[str, Any]] = field(default_factory=list)
    scores: tuple[HeldoutScore, ...] = ()
    items: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def jobs(count: int, train_sample: tuple[int, ...] = (64,), keep: Any = "none") -> list[Job]:
    """Return trials that differ in their seed, scored once for each `train_sample`."""
    return [_job(seed, train_sample, keep) for seed in range(count)]


def options(max_workers: int = 2, **changes: Any) -> Options:
    """Return options under which the synthetic body runs."""
    return Options(**{"max_workers": max_workers, "body": BODY, "preload": PRELOAD, **changes})


def behave(base: Path, seed: int, *ways: str, seconds: float = 0.03) -> None:
    """Say how the trial of a seed behaves at its first, second, ... performance; afterwards it finishes."""
    base.mkdir(parents=True, exist_ok=True)
    (base / f"behaviour-{seed}.json").write_text(json.dumps({"ways": ways, "seconds": seconds}))


def lose(base: Path, losses: dict[str, float]) -> None:
    """Say what loss each trial ends with, by its id; without this all end with the same."""
    base.mkdir(parents=True, exist_ok=True)
    (base / "losses.json").write_text(json.dumps(losses))


def journal(base: Path) -> list[list[str]]:
    """Return what happened, in order: begin, end or overlap; seed; process id."""
    path = base / "journal"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def perform(job: Job, base: Path, scratch: Path, progress: Callable[[Any], None]) -> Performed:
    """Pretend to train; an overlap with another performance of the same trial is written down."""
    seed = job.trial.seed
    with (base / f"busy-{seed}").open("w") as busy:
        try:
            fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _note(base, "overlap", seed)
        before = sum(line[0] == "begin" and line[1] == str(seed) for line in journal(base))
        _note(base, "begin", seed)
        way, seconds = _behaviour(base, seed, before)
        for step in range(1, 4):
            time.sleep(seconds / 3)
            progress(Progress("training", step, 3, 1.0 / step))
        special = _act(way, scratch)
        _note(base, "end", seed)
    return special or _finished(job, _loss(job, base))


def _behaviour(base: Path, seed: int, before: int) -> tuple[str, float]:
    path = base / f"behaviour-{seed}.json"
    if not path.exists():
        return "finish", 0.03
    told = json.loads(path.read_text())
    ways = told["ways"]
    return (ways[before] if before < len(ways) else "finish"), told["seconds"]


def _act(way: str, scratch: Path) -> Performed | None:
    if way == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "fail":
        print("about to fail")
        raise RuntimeError("the matrix is on fire")
    if way == "exit":
        os._exit(9)
    if way == "memory":
        raise MemoryError
    if way == "full":
        raise OSError(28, "No space left on device")
    if way == "does not fit":
        return Performed(OutOfMemory(phase="training", requested_bytes=10, limit_bytes=5))
    (scratch / "weights").write_text("kept")
    return None


def _finished(job: Job, loss: float = 0.5) -> Performed:
    def digest(word: str) -> str:
        return hashlib.sha256(f"{word} {job.trial_id}".encode()).hexdigest()

    scores = [(job.trial.score_id(setting), setting) for setting in job.scores]
    return Performed(
        outcome=Finished(),
        resolved={"dtype": "float32", "odd": float("nan")},
        counts=Counts(examples=8, optimizer_steps=3, tokens=80, target_tokens=40, truncated_examples=0),
        identity=Identity(
            order_sha256=digest("order"),
            initial_weights_sha256=digest("initial"),
            final_weights_sha256=digest("final"),
            loss_curve_sha256=digest("curve"),
        ),
        proof={"tuning": {"trainable": 12}},
        steps=[{"step": step, "epoch": step / 3, "loss": 1.0 / step} for step in range(1, 4)],
        scores=tuple(_score(job, key, setting, loss) for key, setting in scores),
        items={key: [{"step": 3, "split": "test", "loss_sum": 2.0, "targets": 4}] for key, _ in scores},
    )


def _loss(job: Job, base: Path) -> float:
    path = base / "losses.json"
    return json.loads(path.read_text())[job.trial_id] if path.exists() else 0.5


def _score(job: Job, score_id: str, setting: Heldout, loss: float) -> HeldoutScore:
    group = (*setting.groups, "all")[0]
    reading = Reading(
        step=3, epoch=1.0, split="test", group=group, loss=loss, accuracy=0.5, targets=4, examples=1
    )
    return HeldoutScore(
        score_id=score_id, trial_id=job.trial_id, setting=setting.canonical(), curve=(reading,)
    )


def _job(seed: int, train_sample: tuple[int, ...], keep: Any) -> Job:
    trial = Trial(
        task="instruction",
        model=EmbeddedModel(),
        data=EmbeddedData(train_examples=None, validation_examples=None, test_examples=None),
        content=Content(model_sha256="m", train_sha256="t", template_sha256="p"),
        training=Training(
            effective_batch_size=16, epochs=1, max_steps=None, learning_rate=1e-3, warmup_steps=0,
            adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, weight_decay=0.0, max_grad_norm=1.0,
            max_length=64,
        ),
        gradient_accumulation_steps=Accumulation(steps=1),
        neftune_noise_alpha=Noise(alpha=0),
        precision=Fp32(),
        tuning=Full(),
        seed=seed,
    )  # fmt: skip
    scores = tuple(Heldout(train_sample=sample) for sample in train_sample)
    return Job(trial_id=trial.trial_id, group=trial.group, trial=trial, scores=scores, keep=keep)


def _note(base: Path, word: str, seed: int) -> None:
    handle = os.open(base / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, f"{word} {seed} {os.getpid()}\n".encode())
    os.close(handle)
