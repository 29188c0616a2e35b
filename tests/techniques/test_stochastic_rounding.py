"""Rounding by chance: one of two neighbours, with odds that make the mean the value itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paribus.techniques.precision.formats import BF16, E4M3, FORMATS, FP16, NF4, Format, stochastic_round

STEPPED = [form for form in FORMATS.values() if form.name not in ("nf4", "fp32")]
DRAWS = (torch.arange(1024) + 0.5) / 1024


def named(form: Format) -> str:
    return form.name


def neighbours(number: float, form: Format) -> tuple[float, float]:
    """Return the numbers of a format at or below a number within its range, and at or above it."""
    power = 2.0 ** math.floor(math.log2(abs(number))) if number else 0.0
    step = form.smallest_subnormal
    if form.exponent_bits and power > form.smallest_normal:
        step = power * 2.0 ** (1 - form.significand_bits)
    return math.floor(number / step) * step, math.ceil(number / step) * step


@pytest.mark.parametrize("form", STEPPED, ids=named)
@given(number=st.floats(-1, 1, width=32), scale=st.sampled_from([2.0**-20, 1, 6]))
def test_the_mean_over_all_draws_is_the_number(form: Format, number: float, scale: float) -> None:
    exact = torch.tensor(number * scale)
    low, high = neighbours(exact.item(), form)
    rounded = stochastic_round(exact.expand(len(DRAWS)), form, DRAWS).double()
    assert set(rounded.tolist()) <= {low, high}
    assert abs(rounded.mean().item() - exact.item()) <= (high - low) / len(DRAWS)


@pytest.mark.parametrize("form", STEPPED, ids=named)
def test_a_number_of_the_format_stays_whatever_is_drawn(form: Format) -> None:
    held = torch.tensor([0.0, form.smallest_subnormal, form.smallest_normal, 1.0, 2.0, form.largest])
    for draw in (0.0, 0.5, 1 - 2.0**-24):
        for values in (held, -held):
            assert torch.equal(stochastic_round(values, form, torch.full_like(held, draw)), values)


def test_a_small_update_survives_on_average() -> None:
    """In bf16 the nearest to 1 + 2^-12 is 1, a sixteenth of a step below; one draw in 32 goes up."""
    rounded = stochastic_round(torch.full((1024,), 1 + 2.0**-12), BF16, DRAWS)
    assert rounded.mean() == 1 + 2.0**-12
    assert (rounded > 1).float().mean() == 1 / 32


def test_beyond_the_largest_it_saturates_or_becomes_infinite() -> None:
    ends = torch.tensor([1e30, -math.inf, math.nan])
    eight = stochastic_round(ends, E4M3, torch.zeros(3))
    assert eight[:2].tolist() == [448, -448] and eight[2].isnan()
    half = stochastic_round(ends, FP16, torch.zeros(3))
    assert half[:2].tolist() == [math.inf, -math.inf] and half[2].isnan()
    between = torch.full((1024,), 65504.0 + 8)  # a quarter of the step to 65536, which fp16 has not
    found = stochastic_round(between, FP16, DRAWS)
    assert found.isinf().float().mean() == 1 / 4
    assert found[found.isfinite()].unique().tolist() == [65504]


def test_the_dtype_of_the_values_is_kept() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16):
        values = torch.ones(2, dtype=dtype)
        assert stochastic_round(values, E4M3, torch.zeros(2)).dtype == dtype


def test_codes_without_a_step_are_refused() -> None:
    with pytest.raises(ValueError, match="nf4"):
        stochastic_round(torch.ones(1), NF4, torch.zeros(1))
