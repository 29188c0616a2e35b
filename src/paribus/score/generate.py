"""Text that a model in memory writes behind prompts, the same whatever the batches it is written in.

Rows of a batch are padded on the left, hidden from attention and given their own positions. Where padding
would be felt (virtual tokens, models that take no positions) only prompts of one length share a batch. What
batches can still move is rounding: steps that it could decide are counted as ties.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from paribus.errors import ModelError, ParibusError
from paribus.score.next_tokens import Reader, reading, takes_padding
from paribus.score.subject import Subject
from paribus.score.variants import virtual_tokens
from paribus.techniques.base import sub_seed

if TYPE_CHECKING:
    import torch

BATCH: Final = 8
BLOCK: Final = 32
"""Items that are kept together, a multiple of the batch."""
TIE: Final = 1e-4
"""Two logits that are no further apart may change places with the batch."""
EDGE: Final = 1e-5
"""So may two tokens where a draw is no further from the edge between their shares of probability."""
HEAD: Final = 8
"""Tokens of the prompt that a text is decoded with: some tokenizers strip the space of a first token."""


@dataclass(frozen=True)
class Decoding:
    """How to write: greedily at temperature 0, else drawn from the `top_p` share of the likeliest tokens.

    A text ends before the first of the `stop` strings. A prompt for which the context has no room is an error
    unless `truncate`, which cuts it on the left. Source of top_p: Holtzman et al. 2019, arXiv:1904.09751.
    """

    max_new_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    truncate: bool = False


@dataclass
class _Item:
    """A prompt and what is written behind it; `units` are its own draws from [0, 1), one a token."""

    key: object
    prompt: list[int]
    truncated: bool
    units: torch.Tensor | None
    new: list[int] = field(default_factory=list)
    ties: int = 0
    stopped: str = ""
    text: str = ""

    def row(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "tokens": len(self.new),
            "ties": self.ties,
            "truncated": self.truncated,
            "stopped": self.stopped,
        }


def generate(
    subject: Subject,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    *,
    name: str = "generated",
    keys: Sequence[object] | None = None,
    batch_size: int = BATCH,
) -> list[dict[str, Any]]:
    """Return a row a prompt (token ids): text, tokens, ties, truncated, and stopped (eos, stop or length).

    An item's draws depend on the seed and its key alone, which is its index unless `keys` says otherwise.
    Blocks that `subject` kept under `name` are not written again. Raises ParibusError for a prompt that is
    empty or too long, ModelError where logits are not finite.
    """
    room = _room(subject.model, decoding)
    named = list(zip(range(len(prompts)) if keys is None else keys, prompts, strict=True))
    for key, prompt in named:
        _check(key, prompt, room, decoding.truncate)
    write = partial(_written, subject, decoding, room, batch_size)
    return subject.blocks.rows(name, named, BLOCK, write, subject.tell)


def _room(model: Any, decoding: Decoding) -> int | None:
    """Return how many tokens a prompt may have; None where the model says no limit."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is None:
        return None
    room = limit - virtual_tokens(model) - decoding.max_new_tokens
    if room < 1:
        raise ParibusError(
            f"{decoding.max_new_tokens} new tokens leave a prompt no room: the model reads {limit}.",
            way_out="Set max_new_tokens to fewer.",
        )
    return room


def _check(key: object, prompt: Sequence[int], room: int | None, truncate: bool) -> None:
    if not len(prompt):
        raise ParibusError(
            f"item {key}: the prompt has no token.", way_out="Give it some text, or leave it out."
        )
    if room is not None and len(prompt) > room and not truncate:
        raise ParibusError(
            f"item {key}: its {len(prompt)} tokens are more than the {room} that the model has room for.",
            way_out="Set truncate: true to cut prompts on the left, or max_new_tokens to fewer.",
        )


def _written(
    subject: Subject,
    decoding: Decoding,
    room: int | None,
    batch_size: int,
    part: Sequence[tuple[object, Sequence[int]]],
) -> list[dict[str, Any]]:
    """Write behind the prompts of one block."""
    items = [_item(key, list(prompt), room, decoding) for key, prompt in part]
    with reading(subject.model):
        for batch in _batches(items, batch_size, takes_padding(subject.model)):
            _write(subject, batch, decoding)
    return [item.row() for item in items]


def _item(key: object, prompt: list[int], room: int | None, decoding: Decoding) -> _Item:
    import torch

    units = None
    if decoding.temperature > 0:
        generator = torch.Generator().manual_seed(sub_seed(decoding.seed, "sampling", key))
        units = torch.rand(decoding.max_new_tokens, generator=generator, dtype=torch.float64)
    cut = prompt if room is None else prompt[-room:]
    return _Item(key, cut, len(cut) < len(prompt), units)


def _batches(items: Sequence[_Item], size: int, padded: bool) -> Iterator[list[_Item]]:
    """Cut items, longest first, into batches; without padding a batch has prompts of one length."""
    order = sorted(items, key=lambda item: -len(item.prompt))
    groups = [order] if padded else [list(same) for _, same in groupby(order, lambda item: len(item.prompt))]
    for group in groups:
        for start in range(0, len(group), size):
            yield group[start : start + size]


def _write(subject: Subject, batch: Sequence[_Item], decoding: Decoding) -> None:
    """Write behind the prompts of one batch until each item has ended; what ended is read on, unheard."""
    ends = _ends(subject.model, subject.tokenizer)
    reader = Reader(subject.model, [item.prompt for item in batch])
    while True:
        logits = reader.logits()
        best, (first, second) = logits.argmax(-1).tolist(), logits.topk(2).values.unbind(1)
        finite, gaps = first.isfinite().tolist(), (first - second).tolist()
        for row, item in enumerate(batch):
            if item.stopped:
                continue
            if not finite[row]:
                raise _not_finite(item)
            token, tie = best[row], gaps[row] <= TIE
            if item.units is not None:
                token, tie = _drawn(logits[row], decoding, item.units[len(item.new)])
            item.new.append(token)
            item.ties += tie
            _end(item, subject.tokenizer, ends, decoding)
        if all(item.stopped for item in batch):
            return
        reader.add([item.new[-1] for item in batch])


def _not_finite(item: _Item) -> ModelError:
    return ModelError(
        f"item {item.key}: the model's logits are not finite numbers at token {len(item.new) + 1}.",
        way_out="Its weights diverged or its dtype overflows.",
    )


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a text, as the tokenizer, the model and its generation settings say."""
    found = [tokenizer.eos_token_id]
    for config in (getattr(model, "generation_config", None), model.config.get_text_config()):
        said = getattr(config, "eos_token_id", None)
        found += said if isinstance(said, list) else [said]
    return frozenset(token for token in found if token is not None)


def _drawn(logits: torch.Tensor, decoding: Decoding, unit: torch.Tensor) -> tuple[int, bool]:
    """Draw a token: where `unit` falls among the shares of probability, in the order of the vocabulary.

    Also says whether it falls so near to an edge that rounding may decide.
    """
    import torch

    shares = (logits.double().cpu() / decoding.temperature).softmax(-1)
    if decoding.top_p < 1:
        ranked = shares.sort(descending=True, stable=True)
        shares[ranked.indices[ranked.values.cumsum(-1) - ranked.values >= decoding.top_p]] = 0
    edges = shares.cumsum(-1)
    point = unit * edges[-1]
    found = int(torch.searchsorted(edges, point, right=True))
    token = min(found, int(shares.nonzero()[-1]))
    above = float(edges[token] - point)
    return token, min(above, float(shares[token]) - above) <= EDGE


def _end(item: _Item, tokenizer: Any, ends: frozenset[int], decoding: Decoding) -> None:
    """Say that an item has ended, and with what text, if its last token ended it."""
    if item.new[-1] in ends:
        item.stopped, item.text = "eos", _text(item.prompt, item.new[:-1], tokenizer)
        return
    full = len(item.new) == decoding.max_new_tokens
    if not full and not decoding.stop:
        return
    text = _text(item.prompt, item.new, tokenizer)
    places = [place for stop in decoding.stop if (place := text.find(stop)) >= 0]
    if places:
        item.stopped, item.text = "stop", text[: min(places)]
    elif full:
        item.stopped, item.text = "length", text


def _text(prompt: Sequence[int], new: Sequence[int], tokenizer: Any) -> str:
    """Return what tokens add to the text of a prompt."""

    def decoded(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    head = list(prompt[-HEAD:])
    before, whole = decoded(head), decoded([*head, *new])
    return whole[len(before) :] if whole.startswith(before) else decoded(new)
