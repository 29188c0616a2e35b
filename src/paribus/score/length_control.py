"""What a win rate would be if answers were as long as their references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

DEVIATION: Final = 2.5
"""Standard deviation of the prior on the weight of length, which keeps it finite where length alone decides.

Source: Gelman et al. 2008, arXiv:0901.4011, for a weight of an input of about unit size.
"""
STEPS: Final = 100
LARGEST_STEP: Final = 2.0


def length_controlled(
    preferences: Sequence[float], differences: Sequence[float]
) -> tuple[float, float] | None:
    """Return the win rate at equal lengths and its standard error; None where all differences are one.

    `preferences` are 1, 1/2 or 0 and `differences` lengths of answers less those of references. Fitted is
    P(win) = logistic(theta + phi tanh(difference / deviation)); returned is logistic(theta), its error by the
    sandwich estimate. The paper's term for the difficulty of an instruction needs verdicts on many models
    and is left out: there is one model here. Where all preferences are equal there is nothing to control.
    Source: Dubois et al. 2024, arXiv:2404.04475, section 3.
    """
    wins, lengths = np.array(preferences, dtype=float), np.array(differences, dtype=float)
    if len(wins) < 2 or np.ptp(lengths) == 0:
        return None
    if np.ptp(wins) == 0:
        return float(wins[0]), 0.0
    design = np.stack([np.ones_like(wins), np.tanh(lengths / lengths.std(ddof=1))], axis=1)
    weights = _fitted(design, wins)
    chance, bread = _chances(design, weights), _information(design, weights)
    scores = design * (wins - chance)[:, None]
    covariance = np.linalg.inv(bread) @ (scores.T @ scores) @ np.linalg.inv(bread)
    rate = float(1 / (1 + np.exp(-weights[0])))
    return rate, float(rate * (1 - rate) * np.sqrt(covariance[0, 0]))


def _fitted(design: np.ndarray, wins: np.ndarray) -> np.ndarray:
    """Return the weights [theta, phi] of highest posterior, by Newton's steps of bounded length."""
    weights = np.zeros(2)
    for _ in range(STEPS):
        slope = design.T @ (wins - _chances(design, weights)) - _penalty() * weights
        step = np.linalg.solve(_information(design, weights), slope)
        step *= min(1.0, LARGEST_STEP / max(float(np.abs(step).max()), 1e-300))
        weights = weights + step
        if np.abs(step).max() < 1e-12:
            break
    return weights


def _information(design: np.ndarray, weights: np.ndarray) -> np.ndarray:
    chance = _chances(design, weights)
    return (design * (chance * (1 - chance))[:, None]).T @ design + np.diag(_penalty())


def _penalty() -> np.ndarray:
    """Return the precision of the prior on each weight: theta has none."""
    return np.array([0.0, DEVIATION**-2])


def _chances(design: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-(design @ weights)))
