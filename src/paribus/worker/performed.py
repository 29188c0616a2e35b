"""What a worker tells while it is at a trial, and what the trial gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paribus.record.result import Cost, Counts, Identity, Outcome, Score


@dataclass(frozen=True)
class Progress:
    """Where a trial stands: phase (loading, training, done), optimizer steps done and to do, last loss.

    While a task is scored the phase is `scoring` with its name, and the steps are its items.
    """

    phase: str
    step: int
    steps: int
    loss: float | None


@dataclass(frozen=True)
class Performed:
    """What a trial gave; everything but the outcome is absent where the trial did not get that far.

    `proof` is each technique's evidence by axis, `steps` a row for each optimizer step (step, epoch, loss,
    grad_norm, learning_rate, tokens, target_tokens), `items` rows of single examples by score id (step,
    split, group, example_id, loss_sum, targets, correct; a task has columns of its own).
    """

    outcome: Outcome
    resolved: dict[str, Any] = field(default_factory=dict)
    counts: Counts | None = None
    identity: Identity | None = None
    cost: Cost | None = None
    proof: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    steps: list[dict[str, Any]] = field(default_factory=list)
    scores: tuple[Score, ...] = ()
    items: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
