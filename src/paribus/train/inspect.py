"""What a study's data really looks like to its model: `paribus data STUDY`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from paribus.sources.examples import Example, digest, overlap
from paribus.sources.load import load_splits
from paribus.sources.models import ModelFiles, locate
from paribus.sources.template import chat_template, rendering
from paribus.train.data import Encoded, Encoder, encode_all, end_ids, load_tokenizer
from paribus.train.inspect_view import show
from paribus.train.inspection import SHARES, Inspection, Lengths, Piece, Shared, Shown

if TYPE_CHECKING:
    from paribus.plan.study import Study

__all__ = ["Inspection", "inspect", "show"]

WHOLE = 2**31 - 1
"""Tokens; longer than any text, so that nothing is cut."""


def inspect(study: Study) -> Inspection:
    """Read, render and encode a study's data as its trials will; DataError and ModelError have a line."""
    from paribus.plan.content import placed

    with placed(study.place("model")):
        files = locate(study.model, study.folder)
        chat_template(files, study.data, study.task)
        tokenizer = load_tokenizer(files)
    with placed(study.place("data")):
        return _inspected(study, files, tokenizer)


def _inspected(study: Study, files: ModelFiles, tokenizer: Any) -> Inspection:
    splits = load_splits(study.data, study.folder, study.task)
    groups = [("train", "all", splits.train)]
    groups += [("validation", name, listed) for name, listed in splits.validation.items()]
    groups += [("test", name, listed) for name, listed in splits.test.items()]
    mode, limit = rendering(study.data, study.task), study.training.max_length
    learnt = study.data.learnt(study.task)

    def encoded(examples: Sequence[Example], most: int) -> list[Encoded]:
        return encode_all(examples, tokenizer, study.data, most, study.task, splits.classes)

    lengths = tuple(
        _lengths(split, group, listed, encoded(listed, WHOLE), encoded(listed, limit))
        for split, group, listed in groups
    )
    shared = tuple(Shared(**vars(one)) for one in overlap(splits))
    encoder = Encoder(tokenizer, mode, learnt, limit, splits.classes)
    return Inspection(
        study=study.name,
        rendering=mode,
        loss_on=learnt,
        max_length=limit,
        context_length=files.facts.context_length,
        end_tokens=tuple(tokenizer.convert_ids_to_tokens(sorted(end_ids(tokenizer)))),
        shown=tuple(
            _shown(example, encoder) for example in _telling(encoded(splits.train, WHOLE), splits.train)
        ),
        lengths=lengths,
        overlap=shared,
        advice=tuple(_advice(lengths, shared, limit, files.facts.context_length, mode, learnt)),
    )


def _lengths(
    split: str, group: str, examples: tuple[Example, ...], uncut: Sequence[Encoded], kept: Sequence[Encoded]
) -> Lengths:
    whole = [len(row.input_ids) for row in uncut]
    return Lengths(
        split=split,
        group=group,
        examples=len(kept),
        tokens=sum(len(row.input_ids) for row in kept),
        targets=sum(row.targets for row in kept),
        quantiles=tuple(int(q) for q in np.quantile(whole, SHARES, method="inverted_cdf")) if whole else (),
        truncated=sum(row.truncated for row in kept),
        without_targets=sum(not row.targets for row in kept),
        without_end=sum(not row.ends_with_eos for row in kept),
        duplicates=len(examples) - len({digest(example.turns) for example in examples}),
    )


def _telling(rows: Sequence[Encoded], examples: Sequence[Example]) -> list[Example]:
    """Return up to three examples: the first, the one of middle length, and the longest."""
    ranked = sorted(range(len(rows)), key=lambda place: (len(rows[place].input_ids), place))
    places = dict.fromkeys([0, ranked[len(ranked) // 2], ranked[-1]])
    return [examples[place] for place in places]


def _shown(example: Example, encoder: Encoder) -> Shown:
    """Split the text where the fate of its characters changes; what tokens leave out goes with the next."""
    read, limit = encoder.read(example), encoder.max_length
    fates: list[tuple[str, str]] = []
    place = 0
    for number, ((_, end), learnt) in enumerate(zip(read.offsets, read.learnt, strict=True)):
        if end > place:
            fate = "cut" if number >= limit else "learnt" if learnt else "read"
            fates.append((fate, read.text[place:end]))
            place = end
    fates.append((fates[-1][0] if fates else "read", read.text[place:]))
    fates += [] if example.label is None else [("learnt", example.label)]
    pieces = tuple(
        Piece.model_validate({"fate": fate, "text": "".join(text for _, text in run)})
        for fate, run in groupby(fates, key=lambda pair: pair[0])
    )
    return Shown(
        example_id=example.id,
        tokens=min(len(read.ids), limit),
        targets=sum(read.learnt[:limit]) if example.label is None else 1,
        pieces=tuple(piece for piece in pieces if piece.text),
    )


def _advice(
    lengths: Sequence[Lengths],
    shared: Sequence[Shared],
    limit: int,
    context: int | None,
    mode: str,
    learnt: str,
) -> Iterator[str]:
    """Name what most often goes wrong unseen, each with its remedy."""
    if context is not None and limit > context:
        yield f"training.max_length {limit} is beyond the model's {context} tokens: lower it."
    cut = [one for one in lengths if one.truncated]
    if cut:
        longest = max(one.quantiles[-1] for one in cut)
        counts = ", ".join(f"{one.truncated} of {one.examples} in {_name(one)}" for one in cut)
        yield f"Texts are cut at {limit} tokens: {counts}. training.max_length {longest} would cut none."
    for one in lengths:
        if one.without_targets:
            count = f"{one.without_targets} of {one.examples} in {_name(one)}"
            yield f"{count} lost every target by the cut and are left out of training and scoring."
        uncut = one.without_end - one.truncated
        if uncut > 0 and learnt != "label":
            yield (
                f"{uncut} whole texts in {_name(one)} have no end-of-text token as last target: the model "
                f"will not learn to stop. {_ENDING[mode]}"
            )
        if one.duplicates:
            yield f"{one.duplicates} of {one.examples} in {_name(one)} repeat an earlier one."
    for pair in shared:
        if pair.shared:
            yield (
                f"{pair.shared} of {pair.prompts} prompts of {pair.second} are in {pair.first} too, such as "
                f"{pair.example[:60]!r}: scores there measure memory too. Remove them from one of the two."
            )


_ENDING = {
    "chat": "Use a chat template that ends answers, or data.template: plain.",
    "plain": "Name the tokenizer's eos_token in its tokenizer_config.json.",
}
"""How answers get an end, by the way they are rendered."""


def _name(one: Lengths) -> str:
    return one.split if one.group == "all" else f"{one.split} {one.group}"
