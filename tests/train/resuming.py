"""A small training that can be stopped anywhere, and a comparison of two ends to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from paribus.plan.trial import Training
from paribus.techniques import Accumulation, Dropout, Fp8, Full, Live, Noise, Technique
from paribus.train import packed
from paribus.train.checkpoint import Checkpoints
from paribus.train.reading import Reader
from paribus.train.session import Trained, optimizer_steps, train
from paribus.train.trainer import AblationTrainer

EVERY = 2


class Stopped(Exception):
    """Somebody pulled the plug."""


def stops_at(step: int, micro_batch: int = 0) -> type[AblationTrainer]:
    """Return a trainer that dies in the micro-batch of that number after so many optimizer steps."""

    class Stops(AblationTrainer):
        def training_step(self, *given: Any, **named: Any) -> Any:
            self.seen = (getattr(self, "seen", 0) + 1) if self.live.step == self.state.global_step else 1
            if self.state.global_step == step and self.seen > micro_batch:
                raise Stopped
            return super().training_step(*given, **named)

    return Stops


class Readings:
    """A scorer in small: the sum of the weights at each reading."""

    def __init__(self) -> None:
        self.model: Any = None
        self.read: list[tuple[int, float, float]] = []

    def __call__(self, step: int, epoch: float) -> None:
        self.read.append((step, epoch, float(sum(p.double().sum() for p in self.model.parameters()))))

    def state(self) -> dict[str, Any]:
        return {"read": self.read}

    def restore(self, state: dict[str, Any]) -> None:
        self.read = [tuple(one) for one in state["read"]]


@dataclass
class End:
    """Where a training ended."""

    trained: Trained
    weights: dict[str, torch.Tensor]
    proofs: list[dict[str, Any]]
    live: Live
    readings: list[list[tuple[int, float, float]]]
    sums: dict[str, Any]
    last: dict[str, Any]
    """The optimizer and scheduler as the last checkpoint has them."""


LIGHT: tuple[Technique, ...] = (Full(), Noise(alpha=5))
TECHNIQUES: tuple[Technique, ...] = (*LIGHT, Fp8(compute="emulated"), Dropout(p=0.1))


def go(
    folder: Path,
    techniques: Sequence[Technique] = LIGHT,
    *,
    trainer_class: type[AblationTrainer] = AblationTrainer,
    model: Any = tiny.llama,
    splits: int = 3,
    key: str = "this one",
    every: int = EVERY,
    device: Any = None,
    **training: Any,
) -> End:
    """Train 20 rows in steps of 6, so that an epoch's last step takes one micro-batch of two rows."""
    torch.set_num_threads(1)
    chosen = Training(
        **{"effective_batch_size": 6, "epochs": 3, "learning_rate": 1e-3, "warmup_steps": 2, **training}
    )
    rows, readings = tiny.rows(20), [Readings(), Readings()]
    live = Live(seed=0, steps=optimizer_steps(chosen, len(rows)))
    parts = {str(index): one for index, one in enumerate(readings)}
    checkpoints = Checkpoints(folder / "checkpoints", every, key, parts)
    used = (*techniques, Accumulation(steps=splits))
    trained_model = model()
    with ExitStack() as stack:
        for technique in used:
            trained_model = stack.enter_context(technique.applied(trained_model, live))
        for one in readings:
            one.model = trained_model
        trained = train(
            trained_model,
            rows,
            chosen,
            live,
            techniques=used,
            pad_token_id=0,
            readers=[Reader("epoch", readings[0]), Reader(3, readings[1])],
            listener=lambda step, steps, loss: None,
            folder=folder,
            trainer_class=trainer_class,
            checkpoints=checkpoints,
        )
        weights = {name: p.detach().clone() for name, p in trained_model.named_parameters()}
        proofs = [technique.proof(trained_model, live) for technique in used]
    standing = checkpoints.standing()
    last = (
        {
            name: torch.load(standing[-1] / f"{name}.pt", weights_only=True)
            for name in ("optimizer", "scheduler")
        }
        if standing
        else {}
    )
    sums = {name: packed.sums(one) for name, one in live.observed.items()}
    return End(trained, weights, proofs, live, [one.read for one in readings], sums, last)


def same(one: Any, other: Any) -> bool:
    """Compare to the last bit, whatever holds the numbers."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def differing(one: End, other: End) -> list[str]:
    """Name each thing in which two trainings ended apart."""
    pairs = {
        "weights": (one.weights, other.weights),
        "curve": (one.trained.curve, other.trained.curve),
        "curve hash": (one.trained.curve_sha256, other.trained.curve_sha256),
        "order": (one.trained.order_sha256, other.trained.order_sha256),
        "counts": (one.trained.counts, other.trained.counts),
        "micro-batches": (one.live.micro_batches, other.live.micro_batches),
        "proofs": (one.proofs, other.proofs),
        "sums": (one.sums, other.sums),
        "readings": (one.readings, other.readings),
        "optimizer": (one.last, other.last),
    }
    return [name for name, (first, second) in pairs.items() if not same(first, second)]


def stopped_and_resumed(folder: Path, *steps: int, micro_batch: int = 0, **given: Any) -> End:
    """Stop at each of the steps in turn, and let the last attempt run to its end."""
    for step in steps:
        with pytest.raises(Stopped):
            go(folder, trainer_class=stops_at(step, micro_batch), **given)
    return go(folder, **given)
