"""Scenarios of studies whose seeds are fixed: error rates, coverage, power, equality."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rows import Row, generator
from simulated import NOISES, judged, losses, plan_of

from paribus import statistics

ALPHA = 0.05


def scenarios(studies: int) -> Iterator[Row]:
    """Yield every row of fixed studies; coverage of the normal takes five times as many."""
    for seeds in (3, 5, 10, 20):
        yield from _one_arm("normal", seeds, 5 * studies)
    for seeds in (3, 5, 10):
        yield from _family(seeds, studies)
    yield from _power(studies)
    for seeds in (3, 5, 10):
        yield from _equality(seeds, studies)
    yield from _failures(studies)
    for noise in list(NOISES)[1:]:
        for seeds in (3, 5, 10, 20):
            yield from _one_arm(noise, seeds, studies)
    yield from _resampled(max(40, studies // 4))


def _one_arm(noise: str, seeds: int, studies: int) -> Iterator[Row]:
    """One arm that differs in nothing: how often it is called different, how often its interval holds."""
    rng = generator("one arm", noise, seeds)
    found = [
        one.difference for (one,) in judged(plan_of(1, seeds), losses(rng, studies, [0.0], seeds, noise))
    ]
    flagged = np.mean([estimate.p < ALPHA for estimate in found])
    covered = np.mean([estimate.interval.contains(0) for estimate in found])
    topic = "One arm, no difference" if noise == "normal" else "Differences that are not normal"
    name = f"{noise}, {seeds} seeds"
    promised = noise == "normal"
    yield Row(topic, name, "called different", ALPHA, flagged, studies, "about" if promised else "shown")
    yield Row(topic, name, "interval holds", 0.95, covered, studies, "covers" if promised else "shown")


def _family(seeds: int, studies: int) -> Iterator[Row]:
    """Three arms that differ in nothing beside one baseline: A/A studies."""
    rng = generator("family", seeds)
    made = list(judged(plan_of(3, seeds), losses(rng, studies, [0.0] * 3, seeds)))
    any_flagged = np.mean([any(c.verdict in ("better", "worse") for c in study) for study in made])
    uncorrected = np.mean([any(c.difference.p < ALPHA for c in study) for study in made])
    covered = np.mean([c.difference.interval.contains(0) for study in made for c in study])
    topic, name = "A/A studies of three arms", f"{seeds} seeds"
    yield Row(topic, name, "any arm called different, Holm", ALPHA, any_flagged, studies, "at most")
    yield Row(topic, name, "any p below 0.05, uncorrected", None, uncorrected, studies, "shown")
    yield Row(topic, name, "interval holds", 0.95, covered, studies, "covers")


def _power(studies: int) -> Iterator[Row]:
    """A true difference, against the power that statistics.power predicts."""
    cases = [(seeds, statistics.smallest_difference(1.0, seeds)) for seeds in (3, 5, 10)]
    cases += [(5, 1.0), (10, 0.5), (statistics.pairs_needed(0.75, 1.0) or 0, 0.75)]
    for seeds, difference in cases:
        rng = generator("power", seeds, round(difference, 6))
        made = judged(plan_of(1, seeds), losses(rng, studies, [difference], seeds))
        found = np.mean([one.verdict in ("better", "worse") for (one,) in made])
        predicted = statistics.power_paired(difference, 1.0, seeds)
        name = f"a difference of {difference:.2f} spreads, {seeds} seeds"
        yield Row("Power against prediction", name, "found", predicted, found, studies, "about")


def _equality(seeds: int, studies: int) -> Iterator[Row]:
    """A true difference as large as the margin, and none, at a margin of 1.5 spreads."""
    margin = 1.5
    for true in (margin, 0.0):
        rng = generator("equality", seeds, true)
        made = judged(plan_of(1, seeds, margin=margin), losses(rng, studies, [true], seeds))
        equal = np.mean([one.within_margin for (one,) in made])
        predicted = statistics.power_tost(margin, 1.0, seeds, true_difference=true)
        at = "at the margin" if true else "no difference"
        topic, name = "Equality", f"{at}, margin 1.5 spreads, {seeds} seeds"
        if true:
            yield Row(topic, name, "called equal", ALPHA, equal, studies, "at most")
        yield Row(topic, name, "called equal, predicted", predicted, equal, studies, "about")


def _failures(studies: int) -> Iterator[Row]:
    """Trials of the arm that fail by chance: the rest still cover, and no such arm is called equivalent."""
    seeds, rng = 8, generator("failures")
    failed = rng.random((studies, 2, seeds)) < np.array([0.0, 0.25])[None, :, None]
    made = [
        one for (one,) in judged(plan_of(1, seeds, margin=1.5), losses(rng, studies, [0.0], seeds), failed)
    ]
    known = [one for one in made if one.difference and one.difference.interval]
    partly = [one for one in made if one.conditional]
    covered = np.mean([one.difference.interval.contains(0) for one in known])
    topic, name = "Trials that fail by chance", "a quarter of one arm's 8 seeds"
    yield Row(topic, name, "interval holds", 0.95, covered, len(known), "covers")
    equal = np.mean([one.verdict == "equivalent" for one in partly])
    yield Row(topic, name, "called equivalent although some failed", 0.0, equal, len(partly), "at most")


def _resampled(studies: int) -> Iterator[Row]:
    """The bootstrap interval that may stand beside a t interval from 12 pairs on."""
    for noise, pairs in (("normal", 12), ("skewed, exponential", 12), ("skewed, exponential", 20)):
        rng, held, plain = generator("resampled", noise, pairs), [], []
        for values in NOISES[noise](rng, (studies, pairs)):
            held.append(statistics.bca_interval(list(values)).contains(0))
            plain.append(statistics.mean_interval(list(values)).interval.contains(0))
        topic, name = "The resampled interval", f"{noise}, {pairs} pairs"
        yield Row(topic, name, "BCa interval holds", 0.95, np.mean(held), studies, "shown")
        yield Row(topic, name, "t interval holds, same values", 0.95, np.mean(plain), studies, "shown")
