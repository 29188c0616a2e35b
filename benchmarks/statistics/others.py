"""Scenarios of items, tie groups and factorial effects, and of trainings that really differ in nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
from rows import Row, generator
from sequential import race

from paribus import statistics
from paribus.statistics.intervals import with_error
from paribus.statistics.sequential import Looks

ALPHA = 0.05
NULL = Path(__file__).with_name("real_null.json")
"""Test losses of trainings that differ in the order of their examples alone, by trial."""


def scenarios(studies: int) -> Iterator[Row]:
    """Yield every row."""
    for items in (50, 200):
        yield from _mcnemar(items, studies)
    for clusters in (5, 10, 30):
        yield from _clustered(clusters, studies)
    for seeds in (3, 5, 10):
        for between in (0.3, 0.0):
            yield from _crossed(seeds, between, studies)
    for arms in (4, 8):
        yield from _ties(arms, max(100, studies // 4))
    yield from _binomial(max(50, studies // 10))
    yield from _effects(studies)
    yield from _real(studies)


def _mcnemar(items: int, studies: int) -> Iterator[Row]:
    """Two arms that are right equally often, mostly on the same items."""
    rng, p = generator("mcnemar", items), lru_cache(statistics.mcnemar)
    easy = rng.random((studies, items)) < 0.6
    first, second = (np.where(easy, 0.95, 0.2) > rng.random((studies, items)) for _ in range(2))
    only = zip((first & ~second).sum(1), (second & ~first).sum(1), strict=True)
    flagged = np.mean([p(int(a), int(b)) < ALPHA for a, b in only])
    name = f"McNemar, exact, {items} items"
    yield Row("Items", name, "called different", ALPHA, flagged, studies, "at most")


def _clustered(clusters: int, studies: int) -> Iterator[Row]:
    """Five items a passage, of which a third of the variance is the passage's."""
    rng, held, naive = generator("clustered", clusters), [], []
    label = np.repeat(np.arange(clusters), 5).tolist()
    for _ in range(studies):
        values = np.repeat(rng.normal(0, np.sqrt(0.5), clusters), 5) + rng.standard_normal(5 * clusters)
        found = statistics.clustered_difference(values.tolist(), label)
        held.append(found.interval.contains(0))
        naive.append(statistics.mean_interval(values.tolist()).interval.contains(0))
    name = f"{clusters} passages of 5 items"
    rule = "covers"
    yield Row("Items", name, "clustered interval holds", 0.95, np.mean(held), studies, rule)
    yield Row(
        "Items",
        name,
        "an interval that takes items as independent holds",
        None,
        np.mean(naive),
        studies,
        "shown",
    )


def _crossed(seeds: int, between: float, studies: int) -> Iterator[Row]:
    """Seeds crossed with 60 items: an interval for new seeds and items, and one for new seeds only."""
    rng, items = generator("crossed", seeds, between), 60
    held: dict[Literal["new_seeds_and_items", "new_seeds_these_items"], list[bool]] = {
        "new_seeds_and_items": [],
        "new_seeds_these_items": [],
    }
    for _ in range(studies):
        by_seed, by_item = rng.normal(0, np.sqrt(between), (seeds, 1)), rng.standard_normal((1, items))
        table = (by_seed + by_item + rng.standard_normal((seeds, items))).tolist()
        truths = {"new_seeds_and_items": 0.0, "new_seeds_these_items": float(by_item.mean())}
        for estimand, found in held.items():
            found.append(_over_items(table, estimand).contains(truths[estimand]))
    name = f"{seeds} seeds x {items} items, variance between seeds {between:g}"
    for estimand, found in held.items():
        words = estimand.replace("_", " ")
        if estimand == "new_seeds_and_items" and seeds < statistics.FEWEST_SEEDS:
            measure = f"interval for {words}, which is not given, would hold"
            yield Row("Items", name, measure, None, np.mean(found), studies, "shown")
        else:
            yield Row("Items", name, f"interval for {words} holds", 0.95, np.mean(found), studies, "covers")


def _over_items(table: list[list[float]], estimand: statistics.Estimand) -> statistics.Interval:
    """Return the interval of a mean, also where the product refuses one because the seeds are too few."""
    found, parts = statistics.crossed_difference(table, estimand), statistics.components(table)
    if found.interval is None:
        error, freedom = statistics.error_of_mean(parts, parts.seeds, estimand)
        found = with_error(found.n, found.mean, error, freedom, 0.95)
    return found.interval


def _ties(arms: int, studies: int) -> Iterator[Row]:
    """Arms that are all alike, paired by seed: any two told apart."""
    rng, told, seeds = generator("ties", arms), [], 5
    for table in rng.standard_normal((studies, arms, seeds)) + rng.standard_normal((studies, 1, seeds)):
        ps = {
            (i, j): statistics.paired_difference((table[i] - table[j]).tolist()).p
            for i, j in combinations(range(arms), 2)
        }
        told.append(statistics.tie_groups(dict(enumerate(table.mean(1))), ps).apart)
    name = f"{arms} equal arms, 5 seeds, {arms * (arms - 1) // 2} pairs"
    yield Row("Tie groups", name, "any two told apart", ALPHA, np.mean(told), studies, "at most")


def _binomial(studies: int) -> Iterator[Row]:
    """Twenty equal arms scored once on 1,319 items."""
    rng, told = generator("binomial ties"), []
    for right in rng.binomial(1319, 0.3, (studies, 20)):
        scores = {arm: (float(k) / 1319, 1319) for arm, k in enumerate(right)}
        told.append(statistics.binomial_ties(scores).apart)
    name = "20 equal arms, one seed, 1,319 items, 190 pairs"
    yield Row("Tie groups", name, "any two told apart", ALPHA, np.mean(told), studies, "at most")


def _effects(studies: int) -> Iterator[Row]:
    """A grid of two by two by five seeds with two main effects and an interaction."""
    rng, true = generator("effects"), {("a",): 0.5 + 0.2, ("b",): -0.3 + 0.2, ("a", "b"): 0.4}
    held: dict[tuple[str, ...], list[bool]] = {key: [] for key in true}
    for _ in range(studies):
        seeds = rng.standard_normal(5)
        grid = {
            (str(a), str(b)): dict(
                enumerate(0.5 * a - 0.3 * b + 0.4 * a * b + seeds + rng.standard_normal(5))
            )
            for a in (0, 1)
            for b in (0, 1)
        }
        places = (["a", "b"], grid, ("0", "0"))
        for effect in (*statistics.main_effects(*places), *statistics.interactions(*places)):
            held[effect.factors].append(effect.estimate.interval.contains(true[effect.factors]))
    for key, found in held.items():
        what = "interaction" if len(key) > 1 else "main effect"
        name = f"2 x 2 levels, 5 seeds: {what} of {' and '.join(key)}"
        yield Row("Factorial effects", name, "interval holds", 0.95, np.mean(found), studies, "covers")


def _real(studies: int) -> Iterator[Row]:
    """Draw pairs without replacement from trainings that differ in the order of their examples alone."""
    known = np.array(list(json.loads(NULL.read_text(encoding="utf-8"))["losses"].values()))
    topic = "A real null: the same training, another order"
    rng = generator("real null")
    drawn = known[np.array([rng.permutation(len(known)) for _ in range(studies)])]
    pairs = drawn[:, ::2] - drawn[:, 1::2]
    for seeds in (3, 5, 10, 20):
        found = [statistics.paired_difference(values.tolist()) for values in pairs[:, :seeds]]
        name = f"{seeds} pairs of {len(known)} trainings"
        flagged = np.mean([one.p < ALPHA for one in found])
        held = np.mean([one.interval.contains(0) for one in found])
        yield Row(topic, name, "called different", ALPHA, flagged, studies, "shown")
        yield Row(topic, name, "interval holds", 0.95, held, studies, "shown")
    found = race(pairs, Looks(3, 20))
    name = "3 to 20 pairs, until decided"
    yield Row(topic, name, "called different", ALPHA, np.mean(found.decided), studies, "shown")
    held = np.mean(np.abs(found.mean) <= found.half)
    yield Row(topic, name, "repeated interval holds", 0.95, held, studies, "shown")
