"""An example is a conversation; a split is a tuple of examples; three splits feed a study."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "text", "label"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side says; running text, which has no sides, has the role `text`, and its class `label`."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation to learn from. `id` is a hash of its turns; a repetition gets `#2`, `#3` after it."""

    turns: tuple[Turn, ...]
    id: str

    @property
    def prompt(self) -> tuple[Turn, ...]:
        """Return everything before the last answer; of running text all of it."""
        return self.turns[:-1] or self.turns

    @property
    def label(self) -> str | None:
        """Return the class of a text; None where the example has none."""
        return self.turns[-1].text if self.turns[-1].role == "label" else None


@dataclass(frozen=True)
class Splits:
    """Disjoint by design: train teaches, validation chooses, test is only reported. Keys are groups.

    `classes` are the labels of the training examples in their order; none where examples have no label.
    """

    train: tuple[Example, ...]
    validation: dict[str, tuple[Example, ...]]
    test: dict[str, tuple[Example, ...]]
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Overlap:
    """How many different prompts of one split occur in another one too, of how many."""

    first: str
    second: str
    shared: int
    prompts: int
    example: str


def digest(turns: Iterable[Turn]) -> str:
    """Return the SHA-256 of some turns, the same whatever file they came from."""
    written = json.dumps(
        [[turn.role, turn.text] for turn in turns], ensure_ascii=False, separators=(",", ":")
    )
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()


def numbered(conversations: Iterable[tuple[Turn, ...]]) -> tuple[Example, ...]:
    """Give each conversation its id, in order."""
    seen: Counter[str] = Counter()
    examples = []
    for turns in conversations:
        short = digest(turns)[:16]
        seen[short] += 1
        examples.append(Example(turns, short if seen[short] == 1 else f"{short}#{seen[short]}"))
    return tuple(examples)


def content_sha256(examples: Iterable[Example]) -> str:
    """Return the hash of a sequence of examples; their order counts, although training has one of its own."""
    whole = hashlib.sha256()
    for example in examples:
        whole.update(digest(example.turns).encode())
    return whole.hexdigest()


def groups_sha256(groups: dict[str, tuple[Example, ...]]) -> str:
    """Return the hash of what a split is scored on: each group's name and its examples."""
    parts = {name: content_sha256(examples) for name, examples in groups.items()}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def overlap(splits: Splits) -> tuple[Overlap, ...]:
    """Count the prompts that occur in more than one split; none of the three pairs is left out."""
    prompts = {
        "train": _prompts(splits.train),
        "validation": _prompts(example for group in splits.validation.values() for example in group),
        "test": _prompts(example for group in splits.test.values() for example in group),
    }
    pairs = (("train", "validation"), ("train", "test"), ("validation", "test"))
    return tuple(_shared(one, prompts[one], other, prompts[other]) for one, other in pairs)


def shared_prompts(splits: Splits) -> dict[str, int]:
    """Count, for each test group, the different prompts that training has too."""
    trained = _prompts(splits.train)
    return {group: len(_prompts(examples).keys() & trained) for group, examples in splits.test.items()}


def _prompts(examples: Iterable[Example]) -> dict[str, str]:
    return {digest(example.prompt): example.prompt[-1].text for example in examples}


def _shared(one: str, first: dict[str, str], other: str, second: dict[str, str]) -> Overlap:
    both = [key for key in second if key in first]
    return Overlap(one, other, len(both), len(second), second[both[0]] if both else "")
