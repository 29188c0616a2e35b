"""Claims of the chapter on positions beyond training: what each scheme does to the frequencies of RoPE."""

from __future__ import annotations

import math
from typing import Final

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.recompute.long_context import LONG, SHORT

BASE: Final = 10000.0
HEAD: Final = 128
"""RoPE's base and a head's width in Llama-2 (Su et al. 2021, arXiv:2104.09864)."""


def frequencies(base: float = BASE, width: int = HEAD) -> list[float]:
    """Return RoPE's angles a position, the highest first."""
    return [base ** (-2 * pair / width) for pair in range(width // 2)]


def interpolated(factor: float) -> list[float]:
    """Position interpolation: a position m is read as m / factor (Chen et al. 2023, arXiv:2306.15595)."""
    return [one / factor for one in frequencies()]


def ntk_aware(factor: float) -> list[float]:
    """NTK-aware scaling: RoPE's base grows by factor^(d / (d - 2)) (Peng et al. 2023, arXiv:2309.00071)."""
    return frequencies(BASE * factor ** (HEAD / (HEAD - 2)))


def yarn(factor: float, trained: int = SHORT, slow: float = 1, fast: float = 32) -> list[float]:
    """YaRN's ramp between interpolation and none, by turns in the trained window (arXiv:2309.00071, eq. 21).

    Pairs of fewer than `slow` turns are interpolated, of more than `fast` left alone. Limits are rounded to
    whole pairs, as the authors' code has it.
    """

    def pair_of(turns: float) -> float:
        return HEAD * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(BASE))

    low, high = math.floor(pair_of(fast)), math.ceil(pair_of(slow))
    share = [min(1.0, max(0.0, (pair - low) / (high - low))) for pair in range(HEAD // 2)]
    pairs = zip(frequencies(), share, strict=True)
    return [one * (1 - part) + one / factor * part for one, part in pairs]


def b44() -> Computed:
    """Compare each scheme's highest and lowest frequency with those of training."""
    factor, plain = LONG / SHORT, frequencies()
    slower = {
        name: [one / other for one, other in zip(plain, scheme(factor), strict=True)]
        for name, scheme in (("pi", interpolated), ("ntk", ntk_aware), ("yarn", yarn))
    }
    numbers = {
        f"{name}.{end}": of[at] for name, of in slower.items() for end, at in (("high", 0), ("low", -1))
    }
    furthest = (LONG - 1) * interpolated(factor)[0]
    high, low = slower["ntk"][0], slower["ntk"][-1]
    middle = [one for one in slower["yarn"] if 1.001 < one < factor * 0.999]
    return computed(
        {name: (value, "times slower") for name, value in numbers.items()},
        Statement(
            says="PI presses positions linearly into the trained range",
            holds=furthest < SHORT and max(slower["pi"]) == min(slower["pi"]) == factor,
            found=f"every frequency {factor:g} times slower",
        ),
        Statement(says="NTK-aware scaling changes RoPE's base", holds=ntk_aware(factor)[1] != plain[1]),
        Statement(
            says="it extrapolates low frequencies and interpolates high ones",
            holds=low < high,
            found=f"the other way round: the highest stays ({high:g} times slower), the lowest is "
            f"interpolated ({low:.3g} times)",
        ),
        Statement(
            says="YaRN treats bands of frequencies differently",
            holds=slower["yarn"][0] == 1 and math.isclose(slower["yarn"][-1], factor) and bool(middle),
            found=f"high ones stay, low ones are interpolated, {len(middle)} of {HEAD // 2} lie between",
        ),
    )


ROWS = {"B44": b44}
