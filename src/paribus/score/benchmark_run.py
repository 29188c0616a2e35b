"""A benchmark's requests to the model in memory, answered block by block, and what came of them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from paribus.errors import DataError, Place
from paribus.plan.scoring import Benchmark
from paribus.score.benchmark_figures import Document, Leaf, choices, figures, group_figures, items, measure
from paribus.score.lm_eval_calls import calling
from paribus.score.lm_eval_tasks import content, load
from paribus.score.subject import Scored, Subject

if TYPE_CHECKING:
    from paribus.score.lm import InMemoryLM

BLOCK: Final = 32
"""Documents whose answers are kept together."""


def check(setting: Benchmark, base: Path) -> str:
    """Build the first request of each leaf task, look at every right answer, return the hash of all read."""
    loaded = load(setting, base)
    for name, task in loaded.tasks.items():
        with calling(name):
            task.build_all_requests(limit=1)
            for number, doc in task.doc_iterator(limit=setting.limit):
                _right_answer(name, task, number, doc, loaded.places.get(name))
    return content(loaded)


def score(setting: Benchmark, subject: Subject) -> Scored:
    """Score a model on a task or group: a figure for each leaf task and group, a row for each document."""
    from paribus.score.lm import InMemoryLM

    loaded = load(setting, subject.base)
    lm = InMemoryLM(
        subject.model, subject.tokenizer, truncate=setting.truncate, max_gen_toks=setting.max_gen_toks
    )
    leaves = [_asked(name, task, setting, lm, loaded.places.get(name)) for name, task in loaded.tasks.items()]
    for leaf in leaves:
        lm.check_room(max((r for d in leaf.documents for r in d.requests), key=lambda r: len(r.args[0])))
    total, done = sum(len(leaf.documents) for leaf in leaves), 0
    for leaf in leaves:
        _answer(leaf, lm, subject, lambda now, of, done=done: subject.tell(done + now, total))
        done += len(leaf.documents)
        with calling(leaf.name):
            measure(leaf)
    found = [figure for leaf in leaves for figure in figures(leaf, subject.step)]
    of_leaves = tuple(found)
    for name, group in loaded.groups.items():
        with calling(name):
            found += group_figures(group, leaves, of_leaves, subject.step)
    _write_texts(setting, leaves, subject)
    return Scored(tuple(found), [row for leaf in leaves for row in items(leaf)], _counts(leaves))


def _asked(name: str, task: Any, setting: Benchmark, lm: InMemoryLM, places: list[Place] | None) -> Leaf:
    """Build all requests of a leaf task, grouped by document."""
    chat = setting.apply_chat_template
    by_document: dict[int, list[Any]] = defaultdict(list)
    with calling(name):
        task.build_all_requests(
            limit=setting.limit,
            apply_chat_template=chat,
            fewshot_as_multiturn=chat,
            chat_template=lm.apply_chat_template if chat else None,
        )
        for request in task.instances:
            by_document[request.doc_id].append(request)
        for number, requests in by_document.items():
            _right_answer(name, task, number, requests[0].doc, places)
    documents = [
        Document(number, requests[0].doc, sorted(requests, key=lambda request: request.idx))
        for number, requests in by_document.items()
    ]
    return Leaf(name, task, documents)


def _right_answer(name: str, task: Any, number: int, doc: Any, places: list[Place] | None) -> None:
    """Raise DataError where a document's right answer is none of its choices: lm-eval counts it as wrong."""
    offered, right = choices(task, doc) or ([], [])
    for gold in right:
        if gold not in offered if isinstance(gold, str) else not 0 <= gold < len(offered):
            raise DataError(
                f"{name}, document {number}: the right answer is {gold!r}, of {len(offered)} choices.",
                place=places[number] if places and task.config.process_docs is None else None,
                way_out="Correct or remove it. An index starts at 0; a hidden test split may have none.",
            )


def _answer(leaf: Leaf, lm: InMemoryLM, subject: Subject, tell: Callable[[int, int], None]) -> None:
    """Let the model answer every document, or take the answers that an interrupted scoring kept."""
    name = re.sub(r"[^\w.-]", "_", leaf.name)
    kept = subject.blocks.rows(name, leaf.documents, BLOCK, partial(_answers, lm), tell)
    for document, row in zip(leaf.documents, kept, strict=True):
        document.notes = row["notes"]
        for request, answer in zip(document.requests, row["answers"], strict=True):
            request.resps = [tuple(answer) if isinstance(answer, list) else answer] * request.repeats


def _answers(lm: InMemoryLM, documents: Sequence[Document]) -> list[dict[str, Any]]:
    """Return a row a document: the answers to its requests as the model gave them, and the notes."""
    requests = [request for document in documents for request in document.requests]
    answers = iter(getattr(lm, requests[0].request_type)(requests))
    notes = iter(lm.notes)
    return [
        {"answers": [next(answers) for _ in d.requests], "notes": [next(notes) for _ in d.requests]}
        for d in documents
    ]


def _counts(leaves: Sequence[Leaf]) -> dict[str, int]:
    """Count the documents whose prompts were truncated, and the ties in generated answers."""
    documents = [document for leaf in leaves for document in leaf.documents]
    ties = [note["ties"] for document in documents for note in document.notes if "ties" in note]
    truncated = sum(any(note["truncated"] for note in document.notes) for document in documents)
    return {"truncated": truncated} | ({"ties": sum(ties)} if ties else {})


def _write_texts(setting: Benchmark, leaves: Sequence[Leaf], subject: Subject) -> None:
    """Write generated answers as jsonl, a line a document, where the subject has a folder for texts."""
    rows = [
        {"task": leaf.name, "doc_id": document.id, "answer": request.resps[0]}
        for leaf in leaves
        for document in leaf.documents
        for request in document.requests
        if request.request_type == "generate_until"
    ]
    if subject.texts is None or not rows:
        return
    subject.texts.mkdir(parents=True, exist_ok=True)
    path = subject.texts / f"{setting.name or setting.kind}-{subject.step}.jsonl"
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
