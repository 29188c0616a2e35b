"""What `paribus data` says of a study's data, as a frozen value."""

from __future__ import annotations

from typing import Any, Literal

from paribus.techniques.base import Settings

SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""The quantiles at which lengths are told: shortest, 5 %, quarter, half, three quarters, 95 %, longest."""


class Piece(Settings):
    """Some consecutive characters of a rendered text and what becomes of them."""

    text: str
    fate: Literal["read", "learnt", "cut"]


class Shown(Settings):
    """One rendered example; `tokens` counts those kept, `targets` those learnt among them."""

    example_id: str
    tokens: int
    targets: int
    pieces: tuple[Piece, ...]


class Lengths(Settings):
    """Facts about one group of a split; `quantiles` are lengths of whole texts in tokens, at `SHARES`.

    `tokens` and `targets` are sums after the cut. `truncated` texts are longer than the study's max_length,
    `without_targets` lost every target by that and are left out of training and scoring, `without_end` have
    no end-of-text token as their last target, `duplicates` repeat an earlier example of the group.
    """

    split: str
    group: str
    examples: int
    tokens: int
    targets: int
    quantiles: tuple[int, ...]
    truncated: int
    without_targets: int
    without_end: int
    duplicates: int


class Shared(Settings):
    """How many of the second split's different prompts also occur in the first, and one of them."""

    first: str
    second: str
    shared: int
    prompts: int
    example: str


class Inspection(Settings):
    """A study's data as its model reads it; `advice` names what should be looked at, if anything."""

    study: str
    rendering: Literal["chat", "plain"]
    loss_on: str
    max_length: int
    context_length: int | None
    end_tokens: tuple[str, ...]
    shown: tuple[Shown, ...]
    lengths: tuple[Lengths, ...]
    overlap: tuple[Shared, ...]
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the document that `paribus data --json` prints."""
        return self.model_dump(mode="json")
