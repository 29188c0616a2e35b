"""What is scored, and what scoring gives: a model in memory in, figures and rows of single items out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paribus.record.result import Figure
from paribus.score.blocks import Blocks

Tell = Callable[[int, int], None]
"""Called with how many items are done, and of how many."""


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode with its tokenizer; relative paths of the study start at `base`.

    `step` is the optimizer step its weights are from, 0 for the base model. `merged` gives the model with its
    update inside the base's weights, None where it cannot be merged; it may be called once, last.
    `texts` is a folder for generated texts, None where none may be written; `allow_code_execution` is the
    study's word.
    """

    model: Any
    tokenizer: Any
    base: Path
    step: int
    blocks: Blocks
    seed: int = 0
    texts: Path | None = None
    allow_code_execution: bool = False
    merged: Callable[[], Any] = lambda: None
    tell: Tell = lambda done, of: None


@dataclass(frozen=True)
class Scored:
    """What one scoring gave: figures, a row an item, counts of what happened on the way, and warnings."""

    figures: tuple[Figure, ...]
    items: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
