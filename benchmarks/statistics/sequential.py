"""Scenarios of studies that add seeds until all is decided: errors, coverage, power and what is saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rows import Row, generator
from scipy.stats import t
from simulated import NOISES, losses, plan_of, replayed

from paribus import statistics
from paribus.statistics.sequential import Looks

ALPHA, WRONG = 0.05, ("better", "worse", "negligible")
HELD = "repeated interval holds where it stopped"


def scenarios(studies: int) -> Iterator[Row]:
    """Yield every row: whole studies followed look by look, then single contrasts by the ten thousands."""
    for least, most, margin in ((3, 8, 1e-9), (3, 20, 1e-9), (3, 20, 1.5)):
        yield from _no_difference(least, most, margin, studies)
    yield from _alike(studies)
    yield from _at_the_margin(studies)
    yield from _mixed(studies)
    for noise in NOISES:
        yield from _races(noise, 10 * studies)


def _no_difference(least: int, most: int, margin: float, studies: int) -> Iterator[Row]:
    """A/A studies of three arms: any arm called different, at any look, in any order."""
    rng = generator("adaptive null", least, most, margin)
    made = [*replayed(plan_of(3, most, least, margin), losses(rng, studies, [0.0] * 3, most))]
    any_wrong = np.mean([any(s.contrast.verdict in WRONG for s in one.stops.values()) for one in made])
    stopped = [stop for one in made for stop in one.stops.values()]
    covered = np.mean([stop.contrast.difference.interval.contains(0) for stop in stopped])
    topic = "Seeds added until all is decided: A/A studies of three arms"
    name = f"{least} to {most} seeds, " + ("no margin to reach" if margin < 1e-6 else "margin 1.5 spreads")
    yield Row(topic, name, "any arm called different, Holm", ALPHA, any_wrong, studies, "at most")
    yield Row(
        topic, name, "repeated interval holds where it stopped", 0.95, covered, len(stopped), "at least"
    )


def _alike(studies: int) -> Iterator[Row]:
    """The same differences, decided as whole studies of one arm and as single contrasts."""
    found = losses(generator("alike"), studies, [0.7], 8)
    stops = [next(iter(one.stops.values())) for one in replayed(plan_of(1, 8, 3), found)]
    single = race(found[:, 1] - found[:, 0], Looks(3, 8))
    same = [
        (stop.contrast.verdict in WRONG, stop.seeds) == (bool(decided), seeds)
        for stop, decided, seeds in zip(stops, single.decided, single.seeds, strict=True)
    ]
    topic = "Seeds added until all is decided: single contrasts"
    name = "3 to 8 seeds, an effect of 0.7 spreads"
    yield Row(topic, name, "decided as its whole study is", 1.0, np.mean(same), studies, "at least")


def _at_the_margin(studies: int) -> Iterator[Row]:
    """Three arms exactly at the margin: any of them called equal."""
    rng, margin = generator("adaptive margin"), 1.5
    made = [*replayed(plan_of(3, 20, 3, margin), losses(rng, studies, [margin] * 3, 20))]
    stopped = [[stop.contrast for stop in one.stops.values()] for one in made]
    wrong = np.mean([any(c.within_margin for c in contrasts) for contrasts in stopped])
    topic, name = "Seeds added until all is decided: equality", "three arms at the margin, 3 to 20 seeds"
    yield Row(topic, name, "any called equal, Holm", ALPHA, wrong, studies, "at most")


def _mixed(studies: int) -> Iterator[Row]:
    """Arms with no, a middling and a large effect: what is decided, right, covered and saved."""
    effects, margin, most = [0.0, 1.0, 4.0], 1.0, 20
    rng, plan = generator("adaptive mixed"), plan_of(3, 20, 3, 1.0)
    made = [*replayed(plan, losses(rng, studies, effects, most))]
    by_arm = [[list(one.stops.values())[arm] for one in made] for arm in range(3)]
    wrong = np.mean([_wrong(effects, [*one.stops.values()], margin) for one in made])
    stopped = [(stop, effect) for stops, effect in zip(by_arm, effects, strict=True) for stop in stops]
    held = np.mean([stop.contrast.difference.interval.contains(effect) for stop, effect in stopped])
    fixed = np.mean(
        [statistics.mean_interval(s.contrast.differences).interval.contains(e) for s, e in stopped]
    )
    topic = "Seeds added until all is decided: effects of 0, 1 and 4 spreads"
    name = "3 to 20 seeds, margin 1 spread"
    yield Row(topic, name, "any decision of the study wrong", ALPHA, wrong, studies, "at most")
    yield Row(topic, name, HELD, 0.95, held, len(stopped), "at least")
    yield Row(topic, name, "a fixed 95 % interval there would hold", None, fixed, len(stopped), "shown")
    for effect, stops, words in zip(effects, by_arm, (("equivalent",), WRONG, WRONG), strict=True):
        called = f"effect {effect:g}, called {'different' if effect else 'equal'}"
        decided = np.mean([stop.contrast.verdict in words for stop in stops])
        yield Row(topic, name, called, None, decided, studies, "shown")
        seeds = np.mean([stop.seeds for stop in stops])
        yield Row(topic, name, f"effect {effect:g}, used on average", None, seeds, studies, "shown", "seeds")
        lean = np.mean([stop.contrast.difference.mean for stop in stops]) - effect
        yield Row(topic, name, f"effect {effect:g}, mean is off by", None, lean, studies, "shown", "spreads")
    saved = 100 * np.mean([one.saved / len(one.whole.jobs) for one in made])
    yield Row(topic, name, "saved, of the most trials", None, saved, studies, "shown", "%")


def _wrong(effects: list[float], stops: list, margin: float) -> bool:
    """Say whether any verdict of a study is not true."""
    for effect, stop in zip(effects, stops, strict=True):
        verdict = stop.contrast.verdict
        if effect == 0 and verdict in WRONG:
            return True
        if abs(effect) >= margin and verdict in ("equivalent", "negligible"):
            return True
        if effect > 0 and verdict == "better":
            return True
    return False


@dataclass(frozen=True)
class Race:
    """Many contrasts at once: where each stopped, its estimate, and the bound that its interval took."""

    decided: np.ndarray
    seeds: np.ndarray
    mean: np.ndarray
    half: np.ndarray
    fixed_half: np.ndarray
    any_fixed: np.ndarray


def race(values: np.ndarray, looks: Looks) -> Race:
    """Follow single contrasts, a row each, until zero is outside the repeated interval."""
    n = np.arange(1, looks.last + 1)
    means = values.cumsum(1) / n
    squares = np.maximum((values**2).cumsum(1) - n * means**2, 0)
    at = n[looks.first - 1 :]
    means, errors = means[:, looks.first - 1 :], np.sqrt(squares[:, looks.first - 1 :] / (at - 1) / at)
    half = errors * [looks.critical(k, ALPHA / 2) for k in at]
    fixed = errors * t.ppf(1 - ALPHA / 2, at - 1)
    out = np.abs(means) > half
    stop = np.where(out.any(1), out.argmax(1), len(at) - 1)
    row = np.arange(len(values))
    return Race(
        out.any(1), at[stop], means[row, stop], half[row, stop], fixed[row, stop],
        (np.abs(means) > fixed).any(1),
    )  # fmt: skip


def _races(noise: str, contrasts: int) -> Iterator[Row]:
    """Single contrasts with no difference, under every way in which differences may vary."""
    promised = noise == "normal"
    topic = "Seeds added until all is decided: single contrasts" + ("" if promised else ", not normal")
    for most in (8, 20):
        found = race(NOISES[noise](generator("race", noise, most), (contrasts, most)), Looks(3, most))
        held = np.mean(np.abs(found.mean) <= found.half)
        name = f"{noise}, 3 to {most} seeds"
        rule = "about" if promised else "shown"
        yield Row(topic, name, "called different", ALPHA, np.mean(found.decided), contrasts, rule)
        yield Row(
            topic, name, "repeated interval holds", 0.95, held, contrasts, "covers" if promised else rule
        )
        if promised:
            wrong = np.mean(found.any_fixed)
            yield Row(topic, name, "a fixed interval, read as often, errs", None, wrong, contrasts, "shown")


def spending(contrasts: int) -> Iterator[dict[str, float]]:
    """Compare shapes of spending: for several effects the share decided and the seeds it took, 3 to 20."""
    values = generator("spending").standard_normal((contrasts, 20))
    for gamma in (-4.0, -2.0, 0.0, 1.0):
        looks, row = Looks(3, 20, gamma), {"gamma": gamma}
        for effect in (0.5, 1.0, 2.0, 5.0):
            found = race(values + effect, looks)
            row[f"found_{effect:g}"], row[f"seeds_{effect:g}"] = found.decided.mean(), found.seeds.mean()
        yield row | {f"t_at_{n}": looks.critical(n, ALPHA / 2) for n in (3, 4, 6, 20)}
