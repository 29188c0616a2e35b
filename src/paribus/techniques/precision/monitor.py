"""The evidence of emulation: what was rounded, what was not, and where errors pass the article's bound."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from paribus.techniques.base import NoEffect
from paribus.techniques.precision.tally import Tally

TOLERATED: Final = 0.05
"""The error that the article's monitor expects 8-bit formats to stay below; Gaussian numbers have 2.6 % in
E4M3 and 5.3 % in E5M2."""
SHOWN: Final = 2
"""How many of the measured steps a proof shows."""


def evidence(name: str, tally: Tally, model: torch.nn.Module, beside: Sequence[str] = ()) -> dict[str, Any]:
    """Return what was converted, how many products were rounded, errors and losses by role.

    An error is the norm of a tensor's rounding error over the norm of the tensor, the largest of those
    measured; shares are of all numbers that were measured. Raises NoEffect where no product was rounded, no
    number was changed by it, or nothing of what was asked for `beside` the products was met.
    """
    errors = {role: float(f"{float(e):.4g}") for role, e in tally.errors.items() if math.isfinite(e)}
    if not tally.products or not any(errors.values()):
        raise NoEffect(name, "no product of the training run was rounded", "set precision: fp32")
    unmet = [word for word in beside if not tally.products[word]]
    if unmet:
        reason = f"{unmet[0]}: true met nothing to round in {type(model).__name__}"
        raise NoEffect(name, reason, f"set {unmet[0]}: false")
    skipped = Counter(tally.skipped.values())
    lost = {role: [float(n) / max(int(found[2]), 1) for n in found[:2]] for role, found in tally.lost.items()}
    squares = sum(float(p.detach().float().square().sum()) for p in model.parameters())
    return {
        "compute": "emulated",
        "modules_converted": len(tally.converted),
        "for_example": [short(path) for path in tally.converted[:2]],
        "modules_skipped": dict(skipped),
        "skipped_for_example": [short(path) for path in list(tally.skipped)[:1]],
        "rounded_products": dict(tally.products),
        "largest_rounding_error": errors,
        **({"rounding_error_at_step": trail} if len(trail := _trail(tally)) > 1 else {}),
        "share_saturated": _nonzero(lost, 0),
        "share_flushed_to_zero": _nonzero(lost, 1),
        "parameter_norm": float(f"{math.sqrt(squares):.6g}"),
        "warnings": [
            f"the rounding error of {role} reached {error:.1%} of their norm, over the article's "
            f"{TOLERATED:.0%}"
            for role, error in errors.items()
            if error > TOLERATED
        ],
    }


def _nonzero(lost: Mapping[str, Sequence[float]], which: int) -> dict[str, float]:
    """Return the shares that are not zero, to three digits; a role that is absent lost nothing."""
    return {role: float(f"{shares[which]:.3g}") for role, shares in lost.items() if shares[which]}


def _trail(tally: Tally) -> dict[str, dict[str, float]]:
    """Return the errors by role at a few of the measured steps, the first and the last among them."""
    found: dict[str, dict[str, float]] = {}
    for key, error in tally.trail.items():
        step, _, role = key.partition(" ")
        found.setdefault(step, {})[role] = float(f"{float(error):.3g}")
    steps = list(found)
    if len(steps) > SHOWN:
        steps = [steps[round(i * (len(steps) - 1) / (SHOWN - 1))] for i in range(SHOWN)]
    return {step: found[step] for step in steps}


def short(path: str) -> str:
    """Return a module's name as the model without adapters has it."""
    return path.removeprefix("base_model.model.")
