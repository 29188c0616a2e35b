"""Examples as token ids with a loss mask, exact to the character of the rendered text."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers

from paribus.errors import DataError, ModelError
from paribus.sources.blocks import DataBlock, Task
from paribus.sources.cache import cache_folder, write_whole
from paribus.sources.examples import Example, content_sha256
from paribus.sources.models import ModelFiles, unreadable_tokenizer
from paribus.sources.template import rendering
from paribus.train.convert import tokenizer_folder
from paribus.train.render import Span, render

NO_TARGET = -100
VERSION = 1
"""Of the encoding: a change of its rules leaves older files in the cache behind."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One example as the model reads it; a label is the token itself, or -100 where it is no target.

    Where texts are classified, the label of the last token is the number of the class. `truncated`: the text
    was longer than `max_length` and lost its end. `ends_with_eos`: the last target, or a classified text, is
    an end-of-text token, without which a model never learns to stop.
    """

    example_id: str
    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    truncated: bool
    ends_with_eos: bool

    @property
    def targets(self) -> int:
        """Count the tokens that are learnt or scored."""
        return sum(label != NO_TARGET for label in self.labels)


def load_tokenizer(files: ModelFiles) -> Any:
    """Load a model's tokenizer; one without a padding token pads with its end-of-text token."""
    folder = tokenizer_folder(files)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as fault:  # the library raises nothing narrower where tokenizer.json is damaged
        raise unreadable_tokenizer(folder, fault) from fault
    if not tokenizer.is_fast:
        raise ModelError(
            f"the tokenizer in {str(files.path)!r} cannot say which characters a token stands for.",
            way_out="Save it as a fast tokenizer (tokenizer.json).",
        )
    if tokenizer.pad_token is None or tokenizer.pad_token_id >= files.facts.vocabulary:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def encode(
    examples: Iterable[Example],
    tokenizer: Any,
    block: DataBlock,
    max_length: int,
    task: Task = "instruction",
    classes: tuple[str, ...] = (),
) -> list[Encoded]:
    """Encode examples for training or scoring, in order.

    Texts are cut on the right at `max_length` tokens. An example that lost every target in the cut teaches
    and scores nothing: it is left out, so that fewer rows than examples come back and the difference can
    be counted. Raises DataError where none is left.
    """
    rows = encode_all(examples, tokenizer, block, max_length, task, classes)
    taught = [row for row in rows if row.targets]
    if rows and not taught:
        raise DataError(
            f"training.max_length: {max_length} tokens leave no target in any of {len(rows)} examples.",
            way_out="Raise it, so that answers fit behind their prompts.",
        )
    return taught


def encode_all(
    examples: Iterable[Example],
    tokenizer: Any,
    block: DataBlock,
    max_length: int,
    task: Task = "instruction",
    classes: tuple[str, ...] = (),
) -> list[Encoded]:
    """Encode examples, those without any target too; kept on disk by content and read back from there."""
    listed = tuple(examples)
    encoder = Encoder(tokenizer, rendering(block, task), block.learnt(task), max_length, classes)
    path = cache_folder("encoded") / f"{_key(listed, encoder)}.npz"
    rows = _stored(path)
    if rows is None:
        rows = [encoder.encoded(example) for example in listed]
        write_whole(path, _packed(rows))
    _check_known(rows, tokenizer)
    return rows


def _check_known(rows: Sequence[Encoded], tokenizer: Any) -> None:
    """Raise ModelError where a token has no place in the model's embeddings, which training would die of."""
    vocabulary = _described(tokenizer, "config.json").get("vocab_size")
    highest = max((token for row in rows for token in row.input_ids), default=0)
    if isinstance(vocabulary, int) and highest >= vocabulary:
        raise ModelError(
            f"the tokenizer gives token {highest} ({tokenizer.convert_ids_to_tokens(highest)!r}), and the "
            f"model has embeddings for {vocabulary}, 0 to {vocabulary - 1}.",
            way_out="Use the tokenizer that the model was made with, or resize the model's embeddings.",
        )


def collate(rows: Sequence[Encoded], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Pad rows on the right to the longest: `input_ids`, `attention_mask`, `labels`, each rows x tokens."""
    longest = max(len(row.input_ids) for row in rows)

    def padded(values: Iterable[tuple[int, ...]], filler: int) -> torch.Tensor:
        return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in values], dtype=torch.long)

    return {
        "input_ids": padded((row.input_ids for row in rows), pad_token_id),
        "attention_mask": padded(((1,) * len(row.input_ids) for row in rows), 0),
        "labels": padded((row.labels for row in rows), NO_TARGET),
    }


def end_ids(tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a text: the tokenizer's own, and those its model stops generating at."""
    found = {tokenizer.eos_token_id}
    for name in ("generation_config.json", "config.json"):
        listed = _described(tokenizer, name).get("eos_token_id")
        found |= set(listed) if isinstance(listed, list) else {listed}
    return frozenset(token for token in found if isinstance(token, int))


def _described(tokenizer: Any, name: str) -> dict[str, Any]:
    """Return a settings file that lies beside the tokenizer; empty where there is none."""
    path = Path(tokenizer.name_or_path) / name
    return json.loads(path.read_bytes()) if path.is_file() else {}


@dataclass(frozen=True, slots=True)
class Read:
    """A rendered text and its tokens: ids, the characters each stands for, and whether it is a target."""

    text: str
    ids: tuple[int, ...]
    offsets: tuple[Span, ...]
    learnt: tuple[bool, ...]


class Encoder:
    """One way of encoding: tokenizer, rendering, which characters are learnt, and the longest text.

    `loss_on` is the study's, or `label` where texts are classified; `classes` are the labels there are.
    """

    def __init__(
        self, tokenizer: Any, mode: str, loss_on: str, max_length: int, classes: tuple[str, ...] = ()
    ) -> None:
        self.tokenizer, self.mode, self.loss_on, self.max_length = tokenizer, mode, loss_on, max_length
        self.classes = classes
        self.ends = end_ids(tokenizer)

    def encoded(self, example: Example) -> Encoded:
        """Encode one example."""
        read = self.read(example)
        ids, learnt = read.ids[: self.max_length], read.learnt[: self.max_length]
        if example.label is not None:
            return self._labelled(example, read, self.classes.index(example.label))
        labels = tuple(token if target else NO_TARGET for token, target in zip(ids, learnt, strict=True))
        last = next((label for label in reversed(labels) if label != NO_TARGET), None)
        return Encoded(example.id, ids, labels, len(read.ids) > self.max_length, last in self.ends)

    def _labelled(self, example: Example, read: Read, label: int) -> Encoded:
        """Put the number of the class where it is read: at the last token."""
        ids = read.ids[: self.max_length]
        labels = (*[NO_TARGET] * (len(ids) - 1), label)
        return Encoded(example.id, ids, labels, len(read.ids) > self.max_length, ids[-1] in self.ends)

    def read(self, example: Example) -> Read:
        """Render an example and split it into tokens, all of them."""
        rendered = render(example, self.tokenizer, "plain" if self.mode == "plain" else "chat")
        read = self.tokenizer(
            rendered.text,
            add_special_tokens=rendered.adds_special_tokens,
            return_offsets_mapping=True,
            verbose=False,
        )
        ids, offsets = read["input_ids"], read["offset_mapping"]
        learnt = self._learnt(ids, offsets, rendered.answers)
        return Read(rendered.text, tuple(ids), tuple(offsets), tuple(n in learnt for n in range(len(ids))))

    def _learnt(self, ids: list[int], offsets: list[Span], answers: tuple[Span, ...]) -> set[int]:
        """Return the places of the targets. Nothing stands before the first token that could predict it.

        A token on the border of an answer carries its first characters and belongs to it. An end-of-text
        token that the tokenizer appended stands for no characters and belongs to the answer before it.
        """
        spans = answers if self.loss_on == "assistant" else answers[-1:]
        places = range(1, len(ids))
        if self.loss_on == "label":
            return set()
        if self.loss_on == "all":
            return set(places)
        learnt = {place for place in places if any(_touches(offsets[place], span) for span in spans)}
        appended = len(ids) > 1 and offsets[-1][0] == offsets[-1][1] and ids[-1] in self.ends
        return learnt | {len(ids) - 1} if appended else learnt


def _touches(token: Span, span: Span) -> bool:
    return token[0] < token[1] and token[0] < span[1] and token[1] > span[0]


def _key(examples: tuple[Example, ...], encoder: Encoder) -> str:
    """Return the hash of everything that decides the encoding."""
    settings = [
        VERSION,
        transformers.__version__,
        tokenizers.__version__,
        encoder.mode,
        encoder.loss_on,
        encoder.max_length,
        encoder.tokenizer.chat_template,
        encoder.tokenizer.eos_token,
        sorted(encoder.ends),
        content_sha256(examples),
        [example.id for example in examples],
        *encoder.classes,
    ]
    whole = hashlib.sha256(json.dumps(settings).encode())
    whole.update(encoder.tokenizer.backend_tokenizer.to_str().encode())
    return whole.hexdigest()[:32]


def _packed(rows: list[Encoded]) -> bytes:
    """Write rows as flat arrays of numbers and text; nothing in the file is a pickle."""
    file = BytesIO()
    np.savez_compressed(
        file,
        example_id=np.array([row.example_id for row in rows], dtype=np.str_),
        lengths=np.array([len(row.input_ids) for row in rows], dtype=np.int64),
        input_ids=np.array([token for row in rows for token in row.input_ids], dtype=np.int32),
        labels=np.array([label for row in rows for label in row.labels], dtype=np.int32),
        flags=np.array([[row.truncated, row.ends_with_eos] for row in rows], dtype=np.bool_).reshape(-1, 2),
    )
    return file.getvalue()


def _stored(path: Path) -> list[Encoded] | None:
    """Read rows back, or None where they are not there; a damaged file is removed and made anew."""
    if not path.exists():
        return None
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as file:
            names, flags = file["example_id"].tolist(), file["flags"].tolist()
            cuts = np.cumsum(file["lengths"])[:-1]
            ids, labels = (np.split(file[name], cuts) for name in ("input_ids", "labels"))
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
        path.unlink(missing_ok=True)
        return None
    return [
        Encoded(name, tuple(row.tolist()), tuple(label.tolist()), *flag)
        for name, row, label, flag in zip(names, ids, labels, flags, strict=True)
    ]
