"""Claims of quality whose printed figures can be held against the number of questions behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from paribus.compare.recompute import Computed, Statement, computed

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
    return 100 * math.sqrt(sum(p / 100 * (1 - p / 100) / items for p in (first, second)))


def z(first: float, second: float, items: int) -> float:
    """Return the difference of two scores in standard errors."""
    return (first - second) / standard_error(first, second, items)


def _apart(says: str, first: float, second: float) -> Statement:
    found = z(first, second, ALPACA_EVAL)
    return Statement(
        says=says, holds=abs(found) > TOLD, found=f"z = {found:.2f} on {ALPACA_EVAL} prompts, 1.96 is wanted"
    )


def a44() -> Computed:
    """Recompute the gains of the table, and hold each against chance."""
    base, noise = WIN_RATES[0], WIN_RATES[5]
    return computed(
        {"gain.dropout": (DROPOUT - base, "points"), "gain.neftune": (noise - base, "points")},
        _apart("the printed figures tell NEFTune from plain tuning", noise, base),
        _apart("the printed figures tell dropout from plain tuning", DROPOUT, base),
    )


def a51() -> Computed:
    """Hold the best alpha against its neighbours."""
    best = WIN_RATES[5]
    return computed(
        {f"z of alpha 5 against {alpha}": z(best, rate, ALPACA_EVAL)
         for alpha, rate in WIN_RATES.items() if alpha != 5},
        _apart("the printed figures tell alpha 5 from no noise", best, WIN_RATES[0]),
        _apart("the printed figures tell alpha 5, the best, from 10", best, WIN_RATES[10]),
    )  # fmt: skip


def losses() -> Mapping[str, float]:
    """Return what FP8 changes in each score of the table, in points."""
    return {task: scores["FP8"] - scores["FP32"] for task, scores in SCORES.items()}


def nearest_share(score: float, items: int) -> tuple[int, float]:
    """Return the number of right answers whose share is nearest to a score, and that share in percent."""
    right = round(score / 100 * items)
    return right, 100 * right / items


def a69() -> Computed:
    """Recompute the losses, and look for each score of HumanEval among the shares of 164 problems."""
    shares = {score: nearest_share(score, ITEMS["HumanEval"]) for score in SCORES["HumanEval"].values()}
    wrong = [
        f"{score} is no k/164, the nearest is {k}/164 = {share:.2f}"
        for score, (k, share) in shares.items()
        if round(share, 1) != score
    ]
    against_chance = {
        f"z of the loss in {task}": z(s["FP32"], s["FP8"], ITEMS[task]) for task, s in SCORES.items()
    }
    return computed(
        {f"loss.{task}": (change, "points") for task, change in losses().items()} | against_chance,
        Statement(
            says="its scores of HumanEval are shares of the 164 problems",
            holds=not wrong,
            found="; ".join(wrong),
        ),
    )


def a70() -> Computed:
    """Bound the losses as far as that many questions can."""
    bounds = {
        task: s["FP32"] - s["FP8"] + TOLD * standard_error(s["FP32"], s["FP8"], ITEMS[task])
        for task, s in SCORES.items()
    }
    listed = ", ".join(f"{task} {bound:.1f}" for task, bound in bounds.items())
    return computed(
        {"loss": (max(-change for change in losses().values()), "points")}
        | {f"bound of the loss in {task}": (bound, "points") for task, bound in bounds.items()},
        Statement(
            says="the printed figures show a loss below 1 point",
            holds=max(bounds.values()) < 1,
            found=f"at 95 % confidence it may be as large as {listed} points",
        ),
    )


ROWS = {"A44": a44, "A51": a51, "A69": a69, "A70": a70}
