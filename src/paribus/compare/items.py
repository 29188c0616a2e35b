"""Scores of single items of the compared metric: crossed with seeds, and paired within one seed.

A metric is a ratio, what was summed over the items by their targets. An item's own value is linearised so
that the mean over items is the metric itself: z = R + (x - R T) / mean(T), for an item's sum x and targets T
and the trial's ratio R. Source: Cochran 1977, Sampling Techniques, section 6.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from paribus import statistics
from paribus.errors import Place, RecordError

if TYPE_CHECKING:
    from paribus.compare.contrast import Contrast, Rules
    from paribus.compare.findings import Findings
    from paribus.compare.readings import At, Metric
    from paribus.statistics import Estimate

Item = tuple[str, int]
"""An example's id, and how often the id stood before: the same text may be asked twice."""
SUMMED = {"loss": "loss_sum", "accuracy": "correct"}
"""What an item file has of each quantity."""


@dataclass(frozen=True)
class WithinSeed:
    """A difference on the items of one seed, which says nothing of another seed.

    `method` is `mcnemar` where an item is right or wrong, and `clustered` by example elsewhere.
    """

    seed: int
    items: int
    method: str
    estimate: Estimate


def item_values(findings: Findings, at: At, metric: Metric) -> dict[str, dict[Item, float]] | None:
    """Return each finished trial's items: trial -> item -> value, whose mean is the metric at that reading.

    None for a metric or reading of which no items are kept. Raises RecordError where a file is not there.
    """
    if metric.quantity not in SUMMED or at == "equal_train_loss":
        return None
    found = {}
    for trial_id, curve in findings.curves.items():
        point = curve.place(at, metric.group)
        rows = _rows(findings, trial_id, metric, round(point.step)) if point else []
        if rows:
            found[trial_id] = _linearised(rows)
    return found


def _rows(findings: Findings, trial_id: str, metric: Metric, step: int) -> list[tuple[Item, float, int]]:
    """Read one trial's items at a step: each with its sum and its targets."""
    job, found, seen = findings.plan.job(trial_id), [], Counter[str]()
    for score_id in (job.trial.score_id(score) for score in job.scores):
        frame = _read(findings, trial_id, score_id)
        own = frame[(frame.step == step) & (frame.split == metric.split) & (frame.group == metric.group)]
        columns = (own.example_id, own[SUMMED[metric.quantity]], own.targets)
        for example, total, targets in zip(*(column.tolist() for column in columns), strict=True):
            found.append(((example, seen[example]), float(total), int(targets)))
            seen[example] += 1
    return found


def _read(findings: Findings, trial_id: str, score_id: str) -> Any:
    path = findings.store.folder(trial_id) / "items" / f"{score_id}.parquet"
    if not path.exists():
        raise RecordError(
            "the study compares for new items, and these were not recorded",
            place=Place(path),
            way_out="Say compare: {estimand: new_seeds_these_items}, or run the trial again.",
        )
    return findings.store.items(trial_id, score_id)


def _linearised(rows: Sequence[tuple[Item, float, int]]) -> dict[Item, float]:
    """Turn sums and targets into values whose plain mean is the ratio of all sums to all targets."""
    totals, targets = sum(total for _, total, _ in rows), sum(count for *_, count in rows)
    ratio, mean = totals / targets, targets / len(rows)
    return {item: total / mean + ratio * (1 - count / mean) for item, total, count in rows}


def crossed(
    items: Mapping[str, Mapping[Item, float]], pairs: Iterable[tuple[int, str, str]]
) -> list[list[float]] | None:
    """Return differences by seed and item, each the mean over a seed's pairs (seed, treated, untreated).

    The items are those that every trial has; None where there are fewer than two, or a trial has none.
    """
    by_seed: dict[int, list[tuple[Mapping[Item, float], Mapping[Item, float]]]] = {}
    for seed, treated, untreated in pairs:
        if treated not in items or untreated not in items:
            return None
        by_seed.setdefault(seed, []).append((items[treated], items[untreated]))
    sides = [side for found in by_seed.values() for pair in found for side in pair]
    shared = sorted(set.intersection(*map(set, sides))) if sides else []
    if len(shared) < 2:
        return None
    return [
        [
            sum(ours[item] - theirs[item] for ours, theirs in by_seed[seed]) / len(by_seed[seed])
            for item in shared
        ]
        for seed in sorted(by_seed)
    ]


def mean_of(
    rules: Rules, values: Mapping[str, float], items: Mapping[str, Mapping[Item, float]] | None
) -> Estimate | None:
    """Estimate the mean of some trials' values for what the study speaks of, as `estimated` does."""
    if rules.estimand == "new_seeds_these_items" or not values:
        return rules.mean(list(values.values()))
    tables = [(items or {}).get(trial_id, {}) for trial_id in values]
    shared = sorted(set.intersection(*map(set, tables)))
    table = [[own[item] for item in shared] for own in tables]
    found = statistics.crossed_difference(table, rules.estimand, rules.confidence) if shared else None
    if found is None:
        return statistics.Estimate(len(values), fmean(values.values()))
    return statistics.Estimate(found.n, found.mean, found.interval, None, found.error, found.freedom)


@dataclass(frozen=True)
class Estimated:
    """A difference for what the study speaks of, the p of one beyond its margin, and where it varies."""

    difference: Estimate | None
    tost_p: float | None = None
    parts: statistics.Components | None = None


def estimated(
    rules: Rules, differences: Sequence[float], table: Sequence[Sequence[float]] | None
) -> Estimated:
    """Estimate a difference over seeds, or where the study speaks of new items over seeds and items.

    Where it does and none are at hand, such as at equal train loss, there is a mean and nothing else.
    """
    if rules.estimand == "new_seeds_these_items":
        return Estimated(rules.difference(differences), rules.equality(differences))
    found = statistics.crossed_difference(table, rules.estimand, rules.confidence) if table else None
    if found is None or table is None:
        mean = statistics.mean_interval(differences)
        return Estimated(statistics.Estimate(mean.n, mean.mean) if mean else None)
    tost_p = statistics.tost_of(found, rules.margin) if rules.margin else None
    return Estimated(found, tost_p, statistics.components(table))


def within_seeds(findings: Findings, contrast: Contrast) -> list[WithinSeed]:
    """Compare the items of each pair of trials of a contrast; nothing where no items are recorded."""
    try:
        items = findings.items(contrast.at, contrast.metric)
    except RecordError:
        return []
    found = []
    for treated, untreated in contrast.matched:
        seed = findings.plan.job(treated).trial.seed
        ours, theirs = (items or {}).get(treated, {}), (items or {}).get(untreated, {})
        shared = sorted(set(ours) & set(theirs))
        if shared:
            pairs = [(ours[item], theirs[item]) for item in shared]
            found.append(_within(seed, shared, pairs, findings.rules.confidence))
    return found


def _within(
    seed: int, shared: Sequence[Item], pairs: Sequence[tuple[float, float]], confidence: float
) -> WithinSeed:
    differences = [ours - theirs for ours, theirs in pairs]
    clusters = [example for example, _ in shared]
    found = statistics.clustered_difference(differences, clusters, confidence)
    assert found is not None  # there are items
    if all(value in (0.0, 1.0) for pair in pairs for value in pair):
        p = statistics.mcnemar(sum(d > 0 for d in differences), sum(d < 0 for d in differences))
        found = statistics.Estimate(found.n, found.mean, found.interval, p, found.error, found.freedom)
        return WithinSeed(seed, len(shared), "mcnemar", found)
    return WithinSeed(seed, len(shared), "clustered", found)
