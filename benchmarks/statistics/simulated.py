"""Studies that are made up, judged by the code that judges real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from paribus.compare.adaptive import Replay, followed
from paribus.compare.contrast import Contrast, Read, Rules, level_contrasts
from paribus.compare.readings import Metric
from paribus.plan.design import Plan, expand
from paribus.plan.reading import parse_study

STUDY = """\
paribus: 1
name: simulated
model: {{source: embedded}}
data: {{source: embedded}}
training: {{epochs: 1, max_length: 64}}
vary: {{neftune_noise_alpha: {alphas}}}
repeat: {{{repeat}}}
compare: {{metric: test.same_wording.loss, at: last, margin: {margin}}}
"""

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _contaminated(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    wide = rng.random(shape) < 0.1
    return rng.standard_normal(shape) * np.where(wide, 5.0, 1.0) / np.sqrt(0.9 + 0.1 * 25)


NOISES: dict[str, Noise] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy tails, t with 3 degrees": lambda rng, shape: rng.standard_t(3, shape) / np.sqrt(3),
    "one seed in ten five times as wide": _contaminated,
    "skewed, exponential": lambda rng, shape: rng.exponential(1, shape) - 1,
    "very skewed, lognormal": lambda rng, shape: (
        (rng.lognormal(0, 1, shape) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)
    ),
}
"""How paired differences vary, each with mean 0 and variance 1."""


@lru_cache
def plan_of(arms: int, seeds: int, least: int | None = None, margin: float = 1e-9) -> Plan:
    """Plan a baseline and some arms; with `least` seeds are added until all is decided."""
    repeat = f"until: decided, seeds: {least}..{seeds}" if least else f"seeds: {list(range(seeds))}"
    return expand(parse_study(STUDY.format(alphas=list(range(arms + 1)), repeat=repeat, margin=margin)))


def losses(
    rng: np.random.Generator, studies: int, effects: list[float], seeds: int, noise: str = "normal"
) -> np.ndarray:
    """Return studies x cells x seeds, the baseline first: paired differences have a spread of 1.

    Under the normal all cells vary alike, so that arms that share a baseline are correlated by a half. Under
    the others only the arms do: a difference of two that are skewed alike would be symmetric.
    """
    cells, both = len(effects) + 1, noise == "normal"
    found = NOISES[noise](rng, (studies, cells, seeds)) / (np.sqrt(2) if both else 1.0)
    found[:, 0] *= both
    return found + 2 * rng.standard_normal((studies, 1, seeds)) + np.array([0.0, *effects])[None, :, None]


def read_of(plan: Plan, found: np.ndarray, failed: np.ndarray | None = None) -> Read:
    """Give each trial of a plan its value; those that failed have none."""
    compare, study = plan.study.compare, plan.study
    values = {
        trial: float(found[i, seed])
        for i, cell in enumerate(plan.cells)
        for seed, trial in cell.trials.items()
        if failed is None or not failed[i, seed]
    }
    rules = Rules(compare.margin, compare.confidence, compare.family, study.repeat.looks)
    return Read(plan.cells, values, set(values), Metric.parse(compare.metric), compare.at, rules)


def judged(plan: Plan, found: np.ndarray, failed: np.ndarray | None = None) -> Iterator[list[Contrast]]:
    """Judge each of many studies with fixed seeds."""
    for index, one in enumerate(found):
        yield level_contrasts(read_of(plan, one, None if failed is None else failed[index]))


def replayed(plan: Plan, found: np.ndarray) -> Iterator[Replay]:
    """Follow each of many studies that add seeds until all is decided."""
    recorded = {job.trial_id for job in plan.jobs}
    for one in found:
        yield followed(plan, read_of(plan, one), recorded)
