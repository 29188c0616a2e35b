"""From a study's `data:` block to three splits of examples, from files, the hub or the embedded world."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paribus.embedded import world
from paribus.errors import DataError, listed
from paribus.sources.blocks import EMBEDDED_GROUPS, DataBlock, EmbeddedData, FilesData, HubData, Task
from paribus.sources.examples import (
    Example,
    Splits,
    Turn,
    content_sha256,
    digest,
    groups_sha256,
    numbered,
    overlap,
)
from paribus.sources.files import read_rows, resolve
from paribus.sources.forms import Reader, Row
from paribus.sources.hub import hub_rows

__all__ = ["Splits", "content_sha256", "groups_sha256", "load_splits", "overlap"]

Groups = dict[str, tuple[Example, ...]]


def load_splits(block: DataBlock, base: Path, task: Task = "instruction") -> Splits:
    """Read the three splits of a study, each cut to its number of examples; relative paths start at `base`.

    Where validation or test is missing, a share of the training prompts is set aside for it. Limits take the
    examples with the smallest hashes, in the order of the file: a larger limit contains a smaller one, and a
    file sorted by class or length is no trap. Raises DataError.
    """
    if isinstance(block, EmbeddedData):
        return _embedded(block, task)
    rows = {name: _rows(block, name, base) for name in ("train", "validation", "test")}
    reader = Reader(block.form, block.columns)
    train = _examples(reader, rows["train"] or [])
    origin = _origin(train, rows["train"] or [])
    shares = {"test": block.test_share, "validation": block.validation_share}
    train, aside = divided(train, {name: share for name, share in shares.items() if rows[name] is None})
    held = {
        name: _grouped(taken, [reader.group(origin[example.id]) for example in taken])
        for name, taken in aside.items()
    }
    origins = dict.fromkeys(aside, origin)
    for name in (name for name in shares if name not in aside):
        given = rows[name] or []
        examples = _examples(reader, given)
        held[name], origins[name] = (
            _grouped(examples, [reader.group(r) for r in given]),
            _origin(examples, given),
        )
    splits = Splits(
        train=_limited(train, block.train_examples),
        validation={k: _limited(v, block.validation_examples) for k, v in held["validation"].items()},
        test={k: _limited(v, block.test_examples) for k, v in held["test"].items()},
    )
    return _classified(splits, reader, origins) if block.form == "classification" else splits


def _origin(examples: Sequence[Example], rows: Sequence[Row]) -> dict[str, Row]:
    """Return the row that each example was read from, by id."""
    return dict(zip((example.id for example in examples), rows, strict=True))


def _classified(splits: Splits, reader: Reader, origins: Mapping[str, Mapping[str, Row]]) -> Splits:
    """Add the classes, those of the training examples; whole numbers come in their order, then words."""
    found = {example.label or "" for example in splits.train}
    classes = tuple(
        sorted(found, key=lambda label: (not label.isdecimal(), len(label) * label.isdecimal(), label))
    )
    if len(classes) < 2:
        raise DataError(
            f"the {len(splits.train)} training examples have one class alone: {listed(classes)}.",
            way_out="Give examples of two classes at least, or raise data.train_examples.",
        )
    for split in ("validation", "test"):
        for example in (e for group in getattr(splits, split).values() for e in group):
            if example.label not in found:
                fault = f"is {example.label!r}, a class that no training example has"
                way_out = f"Add training examples of it. Classes: {listed(classes)}."
                raise reader.error(origins[split][example.id], "label", fault, way_out)
    return replace(splits, classes=classes)


def _embedded(block: EmbeddedData, task: Task) -> Splits:
    groups = EMBEDDED_GROUPS[task]
    return Splits(
        train=_world(task, "train", groups[0], block.train_examples),
        validation={g: _world(task, "validation", g, block.validation_examples) for g in groups},
        test={g: _world(task, "test", g, block.test_examples) for g in groups},
        classes=world.CLASSES if task == "classification" else (),
    )


def _world(task: Task, split: world.Split, group: Any, count: int | None) -> tuple[Example, ...]:
    try:
        return numbered(_turns(task, split, group, count))
    except ValueError as fault:
        raise DataError(f"data.{split}_examples: {fault}") from fault


def _turns(task: Task, split: world.Split, group: Any, count: int | None) -> Iterator[tuple[Turn, ...]]:
    """Yield the examples of the embedded world; without a count every one it has."""
    match task:
        case "instruction":
            for one in world.examples(split, group, world.capacity(split, group) if count is None else count):
                yield Turn("user", one.prompt), Turn("assistant", one.completion)
        case "classification":
            most = world.labelled_capacity(split, group)
            for one in world.labelled(split, group, most if count is None else count):
                yield Turn("text", one.prompt), Turn("label", one.label)
        case "pretrain":
            for document in world.documents(split, count):
                yield (Turn("text", document),)


def _rows(block: FilesData | HubData, split: str, base: Path) -> list[Row] | None:
    """Return the rows of one split, or None where it is to be set aside from the training rows."""
    written = getattr(block, split)
    if isinstance(block, FilesData):
        return None if written is None else read_rows(resolve(written, base), f"data.{split}")
    if written is None and split not in block.local:
        return None
    return hub_rows(block, split, base)


def _examples(reader: Reader, rows: Iterable[Row]) -> tuple[Example, ...]:
    return numbered(reader.conversation(row) for row in rows)


def _grouped(examples: Sequence[Example], groups: Sequence[str]) -> Groups:
    names = dict.fromkeys(groups)
    return {g: tuple(e for e, own in zip(examples, groups, strict=True) if own == g) for g in names}


def divided(
    train: tuple[Example, ...], shares: Mapping[str, float]
) -> tuple[tuple[Example, ...], dict[str, tuple[Example, ...]]]:
    """Set a share of the training prompts aside for each split named; return what is left and each share."""
    prompts = len({digest(example.prompt) for example in train})
    aside = {}
    for name, share in shares.items():
        train, aside[name] = _set_aside(train, round(share * prompts), name)
    return train, aside


def _set_aside(
    examples: tuple[Example, ...], count: int, name: str
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Take `count` prompts, those with the smallest hashes, away; repeated prompts stay on one side.

    At least one prompt is taken and at least one is left.
    """
    prompts = {example.id: digest(example.prompt) for example in examples}
    ranked = sorted(set(prompts.values()), key=lambda prompt: _draw(name, prompt))
    if len(ranked) < 2:
        raise DataError(
            f"data.{name} is missing, and too few different prompts are left for it: {len(ranked)}.",
            way_out=f"Give data.{name} a file, or train on more examples; prompts that repeat count once.",
        )
    chosen = set(ranked[: min(max(1, count), len(ranked) - 1)])
    left = tuple(example for example in examples if prompts[example.id] not in chosen)
    return left, tuple(example for example in examples if prompts[example.id] in chosen)


def _limited(examples: tuple[Example, ...], limit: int | None) -> tuple[Example, ...]:
    if limit is None or limit >= len(examples):
        return examples
    chosen = {e.id for e in sorted(examples, key=lambda example: _draw("limit", example.id))[:limit]}
    return tuple(example for example in examples if example.id in chosen)


def _draw(role: str, key: str) -> str:
    return hashlib.sha256(f"{role}|{key}".encode()).hexdigest()
