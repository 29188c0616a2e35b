"""Rounding finds the nearest of the numbers that a format's codes stand for, every one of them tried."""

from __future__ import annotations

import math
from hashlib import sha256

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paribus.techniques.precision import bits
from paribus.techniques.precision.formats import (
    BF16,
    BLOCKED,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    FORMATS,
    FP16,
    FP32,
    INT4,
    INT8,
    NF4,
    NF4_CODES,
    TF32,
    Format,
    round_to,
)

BY_HAND: dict[str, list[float]] = {
    "e2m1": [0, 0.5, 1, 1.5, 2, 3, 4, 6],
    "e2m3": [k / 8 for k in range(16)] + [2 + k / 4 for k in range(8)] + [4 + k / 2 for k in range(8)],
    "e3m2": [k / 16 for k in range(4)] + [2.0**e * k / 4 for e in range(-2, 5) for k in range(4, 8)],
    "int8": [float(k) for k in range(128)],
    "int4": [float(k) for k in range(8)],
}  # fmt: skip
"""Magnitudes in the order of their codes: OCP Microscaling Formats v1.0, 5.3, tables 3 to 5."""
WITH_A_GRID = [form for form in FORMATS.values() if form.name != "nf4"]
SMALL = [form for form in WITH_A_GRID if form.bits <= 19]
any_number = st.floats(width=32, allow_nan=False)


def named(form: Format) -> str:
    return form.name


def magnitudes(form: Format) -> np.ndarray:
    """Return the finite magnitudes that a format holds, in the order of their codes."""
    codes = range(1 << (form.bits - 1))
    found = np.array([bits.value_of(form, code) for code in codes], dtype=np.float64)
    return found[np.isfinite(found)]


def nearest(values: torch.Tensor, form: Format) -> torch.Tensor:
    """Search a format's numbers for the nearest of each value, of two the one with the even code."""
    table = magnitudes(form)
    if not form.saturates:
        table = np.append(table, 2 * table[-1] - table[-2])  # the first number beyond, taken for infinity
    exact = np.minimum(values.abs().double().numpy(), table[-1])
    low = np.clip(np.searchsorted(table, exact, side="right") - 1, 0, len(table) - 2)
    under, over = exact - table[low], table[low + 1] - exact
    found = table[low + ((under > over) | ((under == over) & (low % 2 == 1)))]
    if not form.saturates:
        found[found == table[-1]] = np.inf
    return torch.copysign(torch.from_numpy(found), values.double())


@pytest.mark.parametrize("name", BY_HAND)
def test_codes_stand_for_the_published_numbers(name: str) -> None:
    form = FORMATS[name]
    assert magnitudes(form).tolist() == BY_HAND[name]
    assert BY_HAND[name][-1] == form.largest
    assert BY_HAND[name][1] == form.smallest_subnormal


@pytest.mark.parametrize("form", [E4M3, E5M2, FP16, BF16], ids=named)
def test_codes_stand_for_what_torch_reads(form: Format) -> None:
    stored, dtype = torch.uint8 if form.bits == 8 else torch.uint16, getattr(torch, form.dtype or "")
    theirs = torch.arange(1 << form.bits).to(stored).view(dtype).double()
    ours = torch.tensor(list(bits.values(form)), dtype=torch.float64)
    assert torch.equal(theirs.nan_to_num(7e77), ours.nan_to_num(7e77))
    assert torch.equal(theirs.isinf(), ours.isinf())


@pytest.mark.parametrize("form", SMALL, ids=named)
def test_the_table_of_formats_is_what_the_codes_say(form: Format) -> None:
    held = magnitudes(form)
    assert held[-1] == form.largest
    assert held[1] == form.smallest_subnormal
    assert np.all(np.diff(held) > 0)
    if form.exponent_bits:
        assert held[1 << bits.fraction_bits(form)] == form.smallest_normal
        one = int(np.flatnonzero(held == 1)[0])
        assert held[one + 1] - 1 == form.relative_step
    else:
        assert form.relative_step is None


@pytest.mark.parametrize("form", SMALL, ids=named)
def test_every_number_midpoint_and_their_neighbours_round_as_a_search_does(form: Format) -> None:
    held = torch.from_numpy(magnitudes(form))
    middle = (held[1:] + held[:-1]) / 2
    top = 1.5 * held[-1] - held[-2] / 2  # the midpoint behind the largest
    points = torch.cat([held, middle, top.view(1), 3 * held[-1:]]).float()
    up, down = (torch.nextafter(points, torch.tensor(end)) for end in (math.inf, -math.inf))
    tried = torch.cat([points, up, down, torch.tensor([math.inf])])
    tried = torch.cat([tried, -tried])
    found = round_to(tried, form)
    assert torch.equal(found.double(), nearest(tried, form))
    assert torch.equal(found.signbit(), tried.signbit())
    wide = tried.double()
    assert torch.equal(round_to(wide, form), nearest(wide, form))


@pytest.mark.parametrize("form", [FP32, *(form for form in SMALL if form.exponent_bits)], ids=named)
def test_a_double_is_rounded_once(form: Format) -> None:
    """Rounded to fp32 first it would stand in the middle between two numbers and go to the even one."""
    step = form.relative_step
    assert step
    values = torch.tensor([1 + step / 2 + 2.0**-45, 1 + 1.5 * step - 2.0**-45], dtype=torch.float64)
    assert round_to(values, form).tolist() == [1 + step, 1 + step]


@pytest.mark.parametrize("form", [FP16, BF16], ids=named)
def test_a_double_overflows_where_a_float_does(form: Format) -> None:
    half_way = form.largest * (1 + 2.0 ** -(form.significand_bits + 1) / (1 - 2.0**-form.significand_bits))
    near = torch.tensor([half_way, math.nextafter(half_way, 0), -math.inf, 1e300], dtype=torch.float64)
    assert round_to(near, form).tolist() == [math.inf, form.largest, -math.inf, math.inf]


def test_nf4_has_the_codes_of_bitsandbytes_and_rounds_to_the_nearest() -> None:
    from bitsandbytes.functional import get_4bit_type

    codes = torch.tensor(NF4_CODES)
    assert torch.equal(codes, get_4bit_type("nf4", device="cpu"))
    assert list(bits.values(NF4)) == list(NF4_CODES)
    middle = (codes[1:] + codes[:-1]) / 2
    above, below = (torch.nextafter(middle, torch.tensor(end)) for end in (2.0, -2.0))
    for tried in (codes, middle, above, below, torch.linspace(-1.5, 1.5, 4001)):
        assert torch.equal(round_to(tried, NF4), codes[torch.bucketize(tried, middle)])
    ends = round_to(torch.tensor([math.inf, -math.inf, math.nan]), NF4)
    assert ends[:2].tolist() == [1, -1] and ends[2].isnan()


@pytest.mark.parametrize("form", FORMATS.values(), ids=named)
@given(number=any_number)
def test_rounding_again_changes_nothing(form: Format, number: float) -> None:
    once = round_to(torch.tensor([number]), form)
    assert torch.equal(round_to(once, form), once)


@pytest.mark.parametrize("form", FORMATS.values(), ids=named)
@given(numbers=st.lists(any_number, min_size=2, max_size=8))
def test_rounding_keeps_the_order(form: Format, numbers: list[float]) -> None:
    rounded = round_to(torch.tensor(sorted(numbers)), form)
    assert bool((rounded[1:] >= rounded[:-1]).all())


@pytest.mark.parametrize("form", WITH_A_GRID, ids=named)
@given(number=any_number)
def test_rounding_is_the_same_on_both_sides_of_zero(form: Format, number: float) -> None:
    there, mirrored = round_to(torch.tensor([number]), form), round_to(torch.tensor([-number]), form)
    assert torch.equal(there, -mirrored)


@pytest.mark.parametrize("form", WITH_A_GRID, ids=named)
@given(number=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_error_is_at_most_half_a_step(form: Format, number: float) -> None:
    number = max(-form.largest, min(number, form.largest))
    exact = torch.tensor([number])
    step = form.smallest_subnormal
    if form.exponent_bits and abs(exact.item()) > form.smallest_normal:
        step = 2.0 ** (math.floor(math.log2(abs(exact.item()))) + 1 - form.significand_bits)
    assert abs(round_to(exact, form).double() - exact.double()).item() <= step / 2


@pytest.mark.parametrize("form", FORMATS.values(), ids=named)
def test_every_code_is_written_as_it_was_read(form: Format) -> None:
    codes = range(1 << form.bits) if form.bits <= 16 else range(0, 1 << form.bits, (1 << form.bits) // 4093)
    for code in codes:
        number = bits.value_of(form, code)
        again = bits.code_of(form, number)
        if math.isnan(number):
            assert again is None or math.isnan(bits.value_of(form, again))
        else:
            assert again == code


@pytest.mark.parametrize(
    ("form", "number"),
    [
        (E4M3, math.inf), (E2M1, math.nan), (E3M2, 29.0),
        (INT8, -128.0), (INT4, 0.5), (NF4, 0.5), (BF16, 1.01),
    ],
)  # fmt: skip
def test_a_number_that_a_format_has_not_has_no_code(form: Format, number: float) -> None:
    assert bits.code_of(form, number) is None


def test_bits_are_written_apart() -> None:
    assert bits.written(FP32, bits.code_of(FP32, 6.5) or 0) == "0 10000001 10100000000000000000000"
    assert bits.written(E4M3, bits.code_of(E4M3, -448.0) or 0) == "1 1111 110"
    assert bits.written(INT4, bits.code_of(INT4, -7.0) or 0) == "1001"
    assert bits.written(TF32, bits.code_of(TF32, 1.0) or 0) == "0 01111111 0000000000"


@pytest.mark.parametrize(
    ("form", "digest"),
    [
        (E2M1, "cc551dcdbdacc050519d34553b9aa020e1e2b02029d064c579bffc69d0779eba"),
        (E2M3, "32033dc2d31f2d67cdff2dc9d305fd52412e4511697ada5e01d54dc469bbd43c"),
        (E3M2, "fc2c703d1d01cfd781d1448ab2c4762d4a730b996dcdb1f7af8d7b69d50db222"),
    ],
    ids=["e2m1", "e2m3", "e3m2"],
)
def test_six_and_four_bits_are_those_of_torchao(form: Format, digest: str) -> None:
    """The digests are of what torchao 0.18.0 gives (`f32_to_f4_unpacked` and its like, and back)."""
    values = torch.randn(1 << 14, generator=torch.Generator().manual_seed(0)) * 4
    assert sha256((round_to(values, form) + 0.0).numpy().tobytes()).hexdigest() == digest


def test_a_block_takes_the_bits_of_its_elements_and_its_scale() -> None:
    assert {name: form.bits_per_value for name, form in BLOCKED.items()} == {
        "mxfp8": 8.25, "mxfp6": 6.25, "mxfp4": 4.25, "nvfp4": 4.5,
    }  # fmt: skip
