"""From a benchmark's answers to figures and rows, by lm-eval's own filters, metrics and aggregation."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from lm_eval.api.metrics import aggregate_subtask_metrics, mean, stderr_for_metric
from lm_eval.utils import hash_string

from paribus.record.result import Figure
from paribus.score.floor import floor_of

BOOTSTRAPS: Final = 1000
"""Resamples behind the standard error of a metric that has no formula for it, such as F1."""
GUESSED: Final = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info")
"""Metrics of choosing among answers, which guessing gets right at times."""
SHARES: Final = (*GUESSED, "exact_match", "em", "acc_all")


@dataclass
class Document:
    """One document of a leaf task, its requests with the model's answers, and what it notes of each."""

    id: int
    doc: Any
    requests: list[Any]
    notes: list[dict[str, int]] = field(default_factory=list)


@dataclass
class Leaf:
    """What one leaf task gave: values of each document by metric, and lm-eval's own summary of them."""

    name: str
    task: Any
    documents: list[Document]
    values: dict[str, list[Any]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)


def choices(task: Any, doc: Any) -> tuple[list[str], list[Any]] | None:
    """Return the choices of a document and the right ones among them; None where nothing is chosen."""
    if task.OUTPUT_TYPE != "multiple_choice" or callable(task.config.process_results):
        return None
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    return task.doc_to_choice(doc), gold if isinstance(gold, list) else [gold]


def measure(leaf: Leaf) -> None:
    """Apply lm-eval's filters, metrics and aggregation to the answers, as its own evaluation does."""
    task, values = leaf.task, defaultdict(list)
    task.apply_filters()
    for name in leaf.documents[0].requests[0].filtered_resps:
        for document in leaf.documents:
            answers = [request.filtered_resps[name] for request in document.requests]
            for metric, value in task.process_results(document.doc, answers).items():
                values[f"{metric},{name}"].append((document.id, value))
    leaf.values = dict(values)
    leaf.summary = {"sample_len": max(map(len, values.values()))}
    for key, pairs in values.items():
        metric, name = _parted(key)
        aggregate = task.aggregation().get(metric, mean)
        found = [value for _, value in pairs]
        leaf.summary[key] = float(aggregate(found))
        leaf.summary[f"{metric}_stderr,{name}"] = _error(aggregate, found)


def _error(aggregate: Any, values: list[Any]) -> float | str:
    """Return lm-eval's standard error, `N/A` where it has none."""
    error = stderr_for_metric(aggregate, BOOTSTRAPS)
    if error is None or len(values) < 2:
        return "N/A"
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"  # a pool of processes would fork the one that holds the model
    try:
        return float(error(values))
    finally:
        os.environ.pop("DISABLE_MULTIPROC")
        if before is not None:
            os.environ["DISABLE_MULTIPROC"] = before


def _parted(key: str) -> tuple[str, str]:
    metric, _, name = key.rpartition(",")
    return metric, name


def figures(leaf: Leaf, step: int) -> Iterator[Figure]:
    for key, pairs in leaf.values.items():
        metric = _parted(key)[0]
        better = leaf.task.higher_is_better().get(metric, True)
        chances = [_chance(leaf.task, metric, document.doc) for document in leaf.documents]
        known = [chance for chance in chances if chance is not None]
        chance = sum(known) / len(known) if len(known) == len(chances) else None
        yield _figure(
            step, leaf.name, key, leaf.summary, len(pairs), chance, bool(better), _unit(leaf, metric)
        )


def _figure(
    step: int, task: str, key: str, summary: Any, n: int, chance: float | None, better: bool, unit: str
) -> Figure:
    metric, name = _parted(key)
    error = summary[f"{metric}_stderr,{name}"]
    figure = Figure(
        step=step,
        task=task,
        metric=key,
        value=float(summary[key]),
        n=n,
        unit=unit,
        higher_is_better=better,
        standard_error=None if error == "N/A" else float(error),
        chance=chance,
    )
    return figure if step else figure.model_copy(update={"at_floor": floor_of(figure)})


def _chance(task: Any, metric: str, doc: Any) -> float | None:
    """Return what guessing gets right of a document; None where that has no meaning or is not known."""
    if metric in GUESSED and (found := choices(task, doc)):
        return len(set(found[1])) / len(found[0])
    return 0.0 if metric == "exact_match" or (metric, task.OUTPUT_TYPE) == ("acc", "loglikelihood") else None


def _unit(leaf: Leaf, metric: str) -> str:
    if metric in SHARES:
        return "share of items"
    return "mean of items" if leaf.task.aggregation().get(metric, mean) is mean else metric


def group_figures(group: Any, leaves: Sequence[Leaf], figures: Sequence[Figure], step: int) -> list[Figure]:
    """Return the figures of a group that aggregates its leaf tasks; chance is aggregated as values are."""
    if not group.has_aggregation:
        return []
    summary = group.aggregate({leaf.name: leaf.summary for leaf in leaves})
    inside = {task.task_name for task in group.get_all_tasks()}
    made = []
    for key, n in summary.get("sample_count", {}).items():
        of = [figure for figure in figures if figure.task in inside and figure.metric == key]
        weighted = next(a.weight_by_size for a in group.aggregate_metric_list if a.metric == _parted(key)[0])
        chances = [figure.chance for figure in of if figure.chance is not None]
        chance = None
        if len(chances) == len(of):
            chance = aggregate_subtask_metrics(chances, [figure.n for figure in of], weighted)
        made.append(_figure(step, group.name, key, summary, n, chance, of[0].higher_is_better, of[0].unit))
    return made


def items(leaf: Leaf) -> Iterator[dict[str, Any]]:
    """Yield a row a document and metric: the value, and what the model gave for it, without texts."""
    about = {document.id: _about(document) for document in leaf.documents}
    for key, pairs in leaf.values.items():
        for number, value in pairs:
            plain = float(value) if isinstance(value, (int, float, np.number, np.bool_)) else None
            yield {"task": leaf.name, "doc_id": number, "metric": key, "value": plain, **about[number]}


def _about(document: Document) -> dict[str, Any]:
    written = json.dumps(document.doc, indent=2, default=str, ensure_ascii=False)
    answers = [request.resps[0] for request in document.requests]
    likelihoods = [answer[0] if isinstance(answer, tuple) else answer for answer in answers]
    return {
        "doc_hash": hash_string(written),
        "loglikelihoods": None if isinstance(answers[0], str) else likelihoods,
        "tokens": sum(note["tokens"] for note in document.notes) if isinstance(answers[0], str) else None,
        "ties": sum(note["ties"] for note in document.notes) if isinstance(answers[0], str) else None,
        "truncated": any(note["truncated"] for note in document.notes),
    }
