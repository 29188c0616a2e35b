"""Prompts with a reference answer each, out of a user's file, and a model's greedy answers to them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paribus.errors import DataError, ModelError, nearest
from paribus.plan.scoring import TextMetrics, WinRate
from paribus.record.result import Figure
from paribus.score.generate import Decoding, generate
from paribus.score.subject import Subject
from paribus.sources.blocks import Form
from paribus.sources.examples import Example, numbered
from paribus.sources.files import columns_of, read_rows, resolve
from paribus.sources.forms import Reader


def answered(
    field: str, written: str, base: Path, form: Form, columns: dict[str, str], limit: int | None
) -> tuple[Example, ...]:
    """Read prompts with a reference answer each; raises DataError with file and line.

    `columns` has the column of each field that must be there. A limit takes the examples with the smallest
    hashes, in the order of the file.
    """
    path = resolve(written, base)
    rows = read_rows(path, field)
    present = columns_of(rows)
    for column in columns.values():
        if column not in present:
            raise DataError(f"{field}: {str(path)!r} has no {column!r}.", way_out=nearest(column, present))
    reader = Reader(form, columns)
    try:
        examples = numbered(reader.conversation(row) for row in rows)
    except DataError as fault:
        raise DataError(fault.message, place=fault.place, way_out="Fill it in or remove the row.") from fault
    kept = set(sorted(example.id for example in examples)[:limit])
    return tuple(example for example in examples if example.id in kept)


def prompt_text(example: Example, tokenizer: Any, template: Literal["chat", "plain"]) -> str:
    """Render what stands before an answer; raises ModelError where a chat template is missing or refuses."""
    if template == "plain":
        return asked(example)
    if not tokenizer.chat_template:
        raise ModelError(
            "the model's tokenizer has no chat template.",
            way_out="Set template: plain, which gives the model each prompt as it is.",
        )
    from jinja2 import TemplateError

    turns = [{"role": turn.role, "content": turn.text} for turn in example.prompt]
    try:
        return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    except TemplateError as fault:
        raise ModelError(
            f"the chat template refuses the prompt {example.id}: {fault}", way_out="Set template: plain."
        ) from fault


def answers(
    setting: TextMetrics | WinRate,
    subject: Subject,
    examples: Sequence[Example],
    template: Literal["chat", "plain"],
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return a row a prompt, of `generate`, with text stripped of white space around it, and what is counted.

    Counted are ties, truncated prompts, and answers that `max_new_tokens` cut short.
    """
    special = template == "plain"
    prompts = [
        subject.tokenizer(prompt_text(one, subject.tokenizer, template), add_special_tokens=special)[
            "input_ids"
        ]
        for one in examples
    ]
    decoding = Decoding(setting.max_new_tokens, truncate=setting.truncate)
    rows = generate(subject, prompts, decoding, keys=[example.id for example in examples])
    counts = {
        "ties": sum(row["ties"] for row in rows),
        "truncated_prompts": sum(row["truncated"] for row in rows),
        "cut_answers": sum(row["stopped"] == "length" for row in rows),
    }
    return [row | {"text": row["text"].strip()} for row in rows], counts


def write_texts(
    setting: TextMetrics | WinRate, subject: Subject, examples: Sequence[Example], texts: Sequence[str]
) -> None:
    """Write answers beside prompts and references as jsonl, where the subject has a folder for texts."""
    if subject.texts is None:
        return
    subject.texts.mkdir(parents=True, exist_ok=True)
    path = subject.texts / f"{setting.name or setting.kind}-{subject.step}.jsonl"
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for example, text in zip(examples, texts, strict=True):
            row = {"id": example.id, "prompt": asked(example), "answer": text, "reference": wanted(example)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def asked(example: Example) -> str:
    """Return what is asked, as plain text."""
    return "\n".join(turn.text for turn in example.prompt)


def wanted(example: Example) -> str:
    """Return the reference answer, stripped of white space around it."""
    return example.turns[-1].text.strip()


def mean_figure(
    setting: TextMetrics | WinRate,
    subject: Subject,
    metric: str,
    values: Sequence[float],
    unit: str = "share of items",
    **more: Any,
) -> Figure:
    """Return the mean over items with its standard error, None of a single one."""
    n = len(values)
    return Figure(
        step=subject.step,
        task=setting.name or setting.kind,
        metric=metric,
        value=float(np.mean(values)),
        n=n,
        unit=unit,
        standard_error=float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else None,
        **more,
    )
