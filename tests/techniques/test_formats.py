"""Rounding agrees with torch's dtypes bit for bit, and with the published values of the 8-bit formats."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paribus.techniques.precision.formats import BF16, E4M3, E5M2, FP16, Format, round_to
from paribus.techniques.precision.scaling import LOSS_SCALE, scaled_round

FORMATS = [BF16, FP16, E4M3, E5M2]
BYTES = torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_every_value_of_a_format_stays_what_it_is(form: Format) -> None:
    dtype = getattr(torch, form.dtype or "")
    every = (
        BYTES.view(dtype)
        if dtype.itemsize == 1
        else torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    )
    exact = every.to(torch.float32)
    finite = exact[exact.isfinite()]
    assert torch.equal(round_to(finite, form), finite)
    assert finite.abs().max() == form.largest == torch.finfo(dtype).max


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_rounding_is_the_round_trip_through_torch(form: Format, values: list[float]) -> None:
    exact = torch.tensor(values, dtype=torch.float32)
    limited = exact.clamp(-form.largest, form.largest) if form.saturates else exact
    assert torch.equal(round_to(exact, form), limited.to(getattr(torch, form.dtype or "")).to(torch.float32))


@pytest.mark.parametrize(
    ("form", "exact", "rounded"),
    [
        (E4M3, 448.0, 448.0),
        (E4M3, 1e6, 448.0),
        (E4M3, -float("inf"), -448.0),
        (E4M3, 2.0**-9, 2.0**-9),  # the least subnormal
        (E4M3, 2.0**-10, 0.0),  # half of it: a tie, to even
        (E4M3, 1.0625, 1.0),  # a tie between 1 and 1.125
        (E4M3, 1.1875, 1.25),  # a tie between 1.125 and 1.25
        (E5M2, 57344.0, 57344.0),
        (E5M2, float("inf"), 57344.0),
        (E5M2, 2.0**-16, 2.0**-16),
        (E5M2, 1e-3, 2.0**-10),
        (BF16, 1 + 2.0**-8, 1.0),
        (BF16, 3.4e38, float("inf")),
        (FP16, 65504.0, 65504.0),
        (FP16, 65520.0, float("inf")),
        (FP16, 2.0**-25, 0.0),
    ],
)
def test_known_values(form: Format, exact: float, rounded: float) -> None:
    assert round_to(torch.tensor([exact]), form).item() == rounded


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_nan_stays_one_and_the_dtype_too(form: Format) -> None:
    values = torch.tensor([float("nan"), 1.5], dtype=torch.float64)
    rounded = round_to(values, form)
    assert rounded.dtype == torch.float64
    assert rounded[0].isnan()
    assert rounded[1] == 1.5


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_the_error_is_within_half_a_unit_of_the_last_bit(form: Format) -> None:
    values = torch.rand(4096, generator=torch.Generator().manual_seed(0)) + 1
    error = (round_to(values, form) - values).abs().max()
    assert 0 < error <= 2.0**-form.significand_bits


@pytest.mark.parametrize("form", [E4M3, E5M2], ids=lambda form: form.name)
def test_tensor_scaling_fits_the_largest_to_the_format_and_keeps_small_numbers(form: Format) -> None:
    """The gradients of a small model lie near 1e-3 and below: unscaled, E4M3 loses most of them."""
    values = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 1e-5
    rounded = scaled_round(values, form, "tensor")
    assert rounded.values.abs().max() == form.largest
    assert (rounded.restored() - values).norm() / values.norm() < 2.0**-form.significand_bits
    lost = (scaled_round(values, E4M3, "none").restored() == 0).float().mean()
    assert lost == 1


def test_tensor_scaling_of_nothing_is_nothing() -> None:
    assert torch.equal(scaled_round(torch.zeros(4), E4M3, "tensor").restored(), torch.zeros(4))


def test_a_loss_scale_saves_small_gradients_and_lets_large_ones_overflow() -> None:
    small, large = torch.tensor([1e-9]), torch.tensor([65520 / LOSS_SCALE])
    assert scaled_round(small, FP16, "none").restored() == 0
    assert scaled_round(small, FP16, LOSS_SCALE).restored().item() == pytest.approx(1e-9, rel=1e-2)
    assert scaled_round(large, FP16, LOSS_SCALE).restored().isinf()
