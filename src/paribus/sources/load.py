"""From a study's `data:` block to three splits of examples, from files, the hub or the embedded world."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from paribus.embedded import world
from paribus.errors import DataError
from paribus.sources.blocks import DataBlock, EmbeddedData, FilesData, HubData
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


def load_splits(block: DataBlock, base: Path) -> Splits:
    """Read the three splits of a study, each cut to its number of examples; relative paths start at `base`.

    Where validation or test is missing, a share of the training prompts is set aside for it. Limits take the
    examples with the smallest hashes, in the order of the file: a larger limit contains a smaller one, and a
    file sorted by class or length is no trap. Raises DataError.
    """
    if isinstance(block, EmbeddedData):
        return _embedded(block)
    rows = {name: _rows(block, name, base) for name in ("train", "validation", "test")}
    reader = Reader(block.form, block.columns)
    train = _examples(reader, rows["train"] or [])
    origin = dict(zip((example.id for example in train), rows["train"] or [], strict=True))
    shares = {"test": block.test_share, "validation": block.validation_share}
    train, aside = divided(train, {name: share for name, share in shares.items() if rows[name] is None})
    held = {
        name: _grouped(taken, [reader.group(origin[example.id]) for example in taken])
        for name, taken in aside.items()
    }
    for name in (name for name in shares if name not in aside):
        listed = rows[name] or []
        held[name] = _grouped(_examples(reader, listed), [reader.group(row) for row in listed])
    return Splits(
        train=_limited(train, block.train_examples),
        validation={k: _limited(v, block.validation_examples) for k, v in held["validation"].items()},
        test={k: _limited(v, block.test_examples) for k, v in held["test"].items()},
    )


def _embedded(block: EmbeddedData) -> Splits:
    groups = get_args(world.Group)
    return Splits(
        train=_world("train", "same_wording", block.train_examples),
        validation={g: _world("validation", g, block.validation_examples) for g in groups},
        test={g: _world("test", g, block.test_examples) for g in groups},
    )


def _world(split: world.Split, group: world.Group, count: int | None) -> tuple[Example, ...]:
    try:
        made = world.examples(split, group, world.capacity(split, group) if count is None else count)
    except ValueError as fault:
        raise DataError(f"data.{split}_examples: {fault}") from fault
    return numbered((Turn("user", one.prompt), Turn("assistant", one.completion)) for one in made)


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
