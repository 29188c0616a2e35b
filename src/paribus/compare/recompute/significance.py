"""Claims of quality whose printed figures can be held against the number of questions behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from paribus.compare.recompute import Computed, computed
from paribus.statistics import binomial_error

ALPACA_EVAL = 805
"""Its prompts: Li et al. 2023, github.com/tatsu-lab/alpaca_eval."""
ITEMS = {"MMLU": 14_042, "HumanEval": 164, "GSM8K": 1319}
"""The test questions of Hendrycks et al. 2021, Chen et al. 2021 and Cobbe et al. 2021."""
TOLD = 1.959964
"""Standard errors that a difference has to be apart at 95 % confidence."""

WIN_RATES = {0: 65.2, 3: 70.1, 5: 75.4, 10: 74.8, 15: 72.3, 20: 68.9}
DROPOUT = 67.8
SCORES = {
    "MMLU": {"FP32": 63.2, "FP16": 63.1, "FP8": 62.8},
    "HumanEval": {"FP32": 32.5, "FP16": 32.3, "FP8": 31.8},
    "GSM8K": {"FP32": 56.8, "FP16": 56.7, "FP8": 56.1},
}


def standard_error(first: float, second: float, items: int) -> float:
    """Return that of a difference of two scores in points, each a binomial share of as many questions."""
    return 100 * math.hypot(*(binomial_error(score / 100, items) for score in (first, second)))


def z(first: float, second: float, items: int) -> float:
    """Return the difference of two scores in standard errors."""
    return (first - second) / standard_error(first, second, items)


def a44() -> Computed:
    """Recompute the gains of the table, and hold each against chance."""
    base = WIN_RATES[0]
    arms = {"dropout": DROPOUT, "neftune": WIN_RATES[5]}
    gains = {f"gain.{name}": (rate - base, "points") for name, rate in arms.items()}
    return computed(gains | {f"z of the gain of {name}": _z(rate, base) for name, rate in arms.items()})


def a51() -> Computed:
    """Hold the best alpha against its neighbours."""
    others = {alpha: rate for alpha, rate in WIN_RATES.items() if alpha != 5}
    return computed({f"z of alpha 5 against {a}": _z(WIN_RATES[5], rate) for a, rate in others.items()})


def _z(first: float, second: float) -> tuple[float, str]:
    return z(first, second, ALPACA_EVAL), "standard errors"


def losses() -> Mapping[str, float]:
    """Return what FP8 changes in each score of the table, in points."""
    return {task: scores["FP8"] - scores["FP32"] for task, scores in SCORES.items()}


def a69() -> Computed:
    """Recompute the losses, hold each against chance, and write each score as problems solved.

    A single answer to each problem gives a whole number of them; a mean over several need not.
    """
    chance = {
        f"z of the loss in {task}": (z(s["FP32"], s["FP8"], ITEMS[task]), "standard errors")
        for task, s in SCORES.items()
    }
    solved = {
        f"HumanEval.{name.lower()} in problems": (score / 100 * ITEMS["HumanEval"], "problems")
        for name, score in SCORES["HumanEval"].items()
    }
    return computed(
        {f"loss.{task}": (change, "points") for task, change in losses().items()} | chance | solved
    )


def a70() -> Computed:
    """Bound the losses as far as that many questions can."""
    bounds = {
        task: s["FP32"] - s["FP8"] + TOLD * standard_error(s["FP32"], s["FP8"], ITEMS[task])
        for task, s in SCORES.items()
    }
    return computed(
        {"greatest printed loss": (max(-change for change in losses().values()), "points")}
        | {f"bound of the loss in {task}": (bound, "points") for task, bound in bounds.items()}
    )


ROWS = {"A44": a44, "A51": a51, "A69": a69, "A70": a70}
