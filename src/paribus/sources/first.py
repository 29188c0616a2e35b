"""The sizes of a first study: what fits the data, the model's context and minutes of one core a trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paribus.techniques.base import ModelFacts

FLOPS = 3e10
"""Multiplications and additions a second of one core in fp32, as measured on current desktop processors."""
SECONDS = 300
"""Of training that a first trial may take."""
FULL_UP_TO = 300_000_000
"""Parameters up to which full fine-tuning is proposed: weights, gradients and AdamW take 16 bytes each."""


@dataclass(frozen=True)
class Sizes:
    """How much a first study reads and learns; counts are examples, lengths tokens."""

    train: int
    validation: int
    test: int
    share: float
    limits: dict[str, int]
    batch: int
    epochs: int
    steps: int
    warmup: int
    learning_rate: str
    max_length: int
    why_length: str
    sample: int
    full: bool
    notes: tuple[str, ...] = field(default=())


def share_aside(prompts: int) -> float:
    """Return the share of so many different prompts to set aside for each split that has no file."""
    return 0.2 if prompts < 200 else 0.1


def sizes(facts: ModelFacts, lengths: Sequence[int], available: Mapping[str, int], share: float) -> Sizes:
    """Choose the sizes for a model and for training texts of these lengths.

    `available` are the examples of each split after `share` of the prompts was set aside for missing ones.
    """
    max_length, why_length = _max_length(lengths, facts.context_length)
    mean = sum(min(length, max_length) for length in lengths) / len(lengths)
    full = facts.parameters <= FULL_UP_TO
    affordable = int(SECONDS * FLOPS / ((6 if full else 4) * facts.parameters * mean))
    epochs = max(1, min(3, affordable // max(1, available["train"])))
    train = min(available["train"], max(32, affordable // epochs))
    held = max(48, affordable // 4)
    kept = {
        "train": train,
        "validation": min(available["validation"], 64, held),
        "test": min(available["test"], 128, held),
    }
    batch = 16 if train >= 160 else 8 if train >= 40 else 4 if train >= 12 else min(2, train)
    steps = epochs * math.ceil(train / batch)
    limited = {s: n for s, n in kept.items() if n < available[s]}
    notes = [
        f"{s}: {kept[s]} of {available[s]} examples, so that a first trial takes minutes" for s in limited
    ]
    if kept["test"] < 30:
        notes.append(
            f"{kept['test']} test examples show only large differences: give data.test a file of more"
        )
    return Sizes(
        train=train,
        validation=kept["validation"],
        test=kept["test"],
        share=share,
        limits=limited,
        batch=batch,
        epochs=epochs,
        steps=steps,
        warmup=max(1, steps // 20),
        learning_rate=_learning_rate(facts.parameters),
        max_length=max_length,
        why_length=why_length,
        sample=min(train, kept["validation"], 64),
        full=full,
        notes=tuple(notes),
    )


def _max_length(lengths: Sequence[int], context: int | None) -> tuple[int, str]:
    longest = max(lengths)
    rounded = math.ceil(longest / 32) * 32
    if context is not None and rounded > context:
        over = sum(length > context for length in lengths)
        cut = f"; about {over} of {len(lengths)} texts are longer and lose their end" if over else ""
        return context, f"the model's context{cut}"
    return rounded, f"the longest text has about {longest} tokens"


def _learning_rate(parameters: int) -> str:
    """Return LoRA's usual rate for a model of this size; smaller models bear larger ones."""
    return "2e-3" if parameters < 2e7 else "5e-4" if parameters < 5e8 else "2e-4"
