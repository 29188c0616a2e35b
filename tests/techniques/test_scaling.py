"""Every scaling: what it restores is near, scales are of the published kind, nothing leaks over a tile."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paribus.techniques.precision.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    FORMATS,
    INT4,
    INT8,
    NF4,
    Format,
    round_to,
)
from paribus.techniques.precision.scaling import Scaling, Word, scaled_round

WORDS: list[Scaling] = list(get_args(Word))
OWN = [word for word in WORDS if word != "none"]
LOW = [E4M3, E5M2, E3M2, E2M3, E2M1, INT8, INT4, NF4]
SHAPES = [(1, 1), (3, 5), (32, 32), (33, 47), (130, 200)]


def named(form: Format) -> str:
    return form.name


def matrix(rows: int = 33, columns: int = 47, seed: int = 0) -> torch.Tensor:
    """Return normal numbers whose rows and columns differ in size by powers of ten."""
    generator = torch.Generator().manual_seed(seed)
    spread = [torch.randn(size, 1, generator=generator).mul(2).exp() for size in (rows, columns)]
    return torch.randn(rows, columns, generator=generator) * spread[0] * spread[1].t()


def whole(scale: torch.Tensor | float | None, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(1.0 if scale is None else scale).expand_as(like)


def half_step(values: torch.Tensor, form: Format) -> torch.Tensor:
    """Return half the step at each number of a format, the widest of them for a table of codes."""
    if form.name == "nf4":
        return torch.full_like(values, (1 - 0.6961928009986877) / 2)
    if not form.exponent_bits:
        return torch.full_like(values, 0.5)
    power = torch.ldexp(torch.ones_like(values), torch.frexp(values).exponent - 1)
    return power.clamp(min=form.smallest_normal) * 2.0**-form.significand_bits


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scaling", OWN)
@pytest.mark.parametrize("form", LOW, ids=named)
def test_what_is_restored_is_within_half_a_step_of_its_scale(
    form: Format, scaling: Scaling, shape: tuple[int, int]
) -> None:
    values = matrix(*shape)
    for axis in (0, 1):
        found = scaled_round(values, form, scaling, axis=axis)
        scale = whole(found.scale, values)
        assert torch.equal(found.values, round_to(found.values, form))
        limit = half_step(values / scale, form) * scale
        if scaling in ("mx", "nv"):  # a scale that was rounded down cuts the largest off
            limit = limit.maximum(values.abs() - form.largest * scale)
        assert bool(((found.restored() - values).abs() <= limit * (1 + 1e-5)).all())


@pytest.mark.parametrize("scaling", WORDS)
@pytest.mark.parametrize("form", [BF16, *LOW], ids=named)
def test_nothing_stays_nothing_and_what_is_not_finite_shows(form: Format, scaling: Scaling) -> None:
    zero = scaled_round(torch.zeros(5, 70), form, scaling)
    expected = round_to(torch.zeros(1), form).item()
    assert zero.restored().abs().max() == expected == 0
    for bad in (math.nan, math.inf, -math.inf):
        values = matrix(5, 70)
        values[2, 40] = bad
        found = scaled_round(values, form, scaling).restored()
        saturates = scaling == "none" and not math.isnan(bad) and form.saturates
        assert found[2, 40].isfinite().item() == saturates
        if scaling in ("row", "mx", "nv", "block"):
            reached = found.isnan().any(1).tolist()
            assert reached == ([True] * 5 if scaling == "nv" else [row == 2 for row in range(5)])


@given(power=st.integers(-100, 100), scaling=st.sampled_from(["tensor", "row", "block", "mx"]))
def test_a_power_of_two_taken_out_changes_no_digit(power: int, scaling: Scaling) -> None:
    values = torch.randn(4, 40, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)
    values[:, ::32] = 2.0
    factor = 2.0**power
    one, other = (scaled_round(v, E4M3, scaling) for v in (values, values * factor))
    assert torch.equal(one.values, other.values)
    assert torch.equal(one.restored() * factor, other.restored())


def test_a_row_is_scaled_as_if_it_were_a_tensor_of_its_own() -> None:
    values = matrix()
    for axis, lines in ((1, values), (0, values.t())):
        found = scaled_round(values, E4M3, "row", axis=axis)
        alone = torch.stack([scaled_round(line, E4M3, "tensor").restored() for line in lines])
        assert torch.equal(found.restored(), alone if axis else alone.t())
        assert not found.outside
        assert torch.as_tensor(found.scale).shape[axis] == 1
    one = matrix(1, 64)
    same = [scaled_round(one, E4M3, scaling) for scaling in ("row", "tensor")]
    assert torch.equal(same[0].values, same[1].values)


def test_rows_keep_what_one_large_number_takes_from_a_tensor() -> None:
    values = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    values[0, 0] = 1e6
    lost = {s: (scaled_round(values, E4M3, s).values[1:] == 0).float().mean() for s in ("tensor", "row")}
    assert lost["tensor"] > 0.9 and lost["row"] == 0


@pytest.mark.parametrize(("block", "axis"), [((1, 128), 1), ((1, 128), 0), ((128, 128), 1), ((128, 128), 0)])
def test_a_tile_is_scaled_as_if_it_were_a_tensor_of_its_own(block: tuple[int, int], axis: int) -> None:
    values = matrix(200, 300)
    found = scaled_round(values, E4M3, "block", axis=axis, block=block)
    high, wide = block if axis else block[::-1]
    for top in range(0, 200, high):
        for left in range(0, 300, wide):
            tile = slice(top, top + high), slice(left, left + wide)
            assert torch.equal(found.restored()[tile], scaled_round(values[tile], E4M3, "tensor").restored())
        if high == 1 and top > 20:
            break
    assert found.outside


@pytest.mark.parametrize("form", [E4M3, E5M2, E3M2, E2M3, E2M1], ids=named)
@pytest.mark.parametrize("axis", [0, 1])
def test_mx_scales_are_those_of_the_specification(form: Format, axis: int) -> None:
    """OCP MX v1.0, 6.3: the largest power of two within the block's largest, over that of the element."""
    values = matrix(70, 70)
    found = scaled_round(values, form, "mx", axis=axis)
    scale, lines = whole(found.scale, values), values if axis else values.t()
    scale = scale if axis else scale.t()
    for start in (0, 32, 64):
        block = lines[:, start : start + 32].abs().amax(1)
        wanted = torch.tensor([
            2.0 ** (math.floor(math.log2(most)) - math.floor(math.log2(form.largest)))
            for most in block.tolist()
        ])  # fmt: skip
        assert torch.equal(scale[:, start : start + 32], wanted[:, None].expand(-1, min(32, 70 - start)))
    assert torch.equal(scale.to(torch.float8_e8m0fnu).float(), scale)
    assert found.outside


def test_mx_cuts_off_what_lies_above_the_largest_of_its_binade() -> None:
    """A largest of 1.99 takes the scale of 1: over 2^-8 it is 509, and 448 is what E4M3 has."""
    found = scaled_round(torch.full((1, 32), 1.99), E4M3, "mx")
    assert found.restored().unique().tolist() == [1.75]
    assert torch.as_tensor(found.scale).unique().tolist() == [2.0**-8]


def test_mx_scales_stay_within_their_eight_bits() -> None:
    tiny, huge = (scaled_round(torch.full((1, 32), size), E2M1, "mx") for size in (2.0**-149, 3e38))
    assert torch.as_tensor(tiny.scale).unique().tolist() == [2.0**-127]
    assert torch.as_tensor(huge.scale).unique().tolist() == [2.0**125]
    blank = scaled_round(torch.zeros(1, 32), E2M1, "mx")
    assert torch.as_tensor(blank.scale).unique().tolist() == [1]


@pytest.mark.parametrize("form", [E4M3, E5M2, E3M2, E2M3, E2M1], ids=named)
def test_mx_agrees_with_torchao(form: Format) -> None:
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    theirs: dict[str, torch.dtype | str] = {
        "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.float4_e2m1fn_x2,
        "e3m2": "fp6_e3m2", "e2m3": "fp6_e2m3",
    }  # fmt: skip
    values, dtype = matrix(16, 96), theirs[form.name]
    scale, codes = mx.to_mx(values, dtype, 32)
    restored = mx.to_dtype(codes, scale, dtype, 32, torch.float32)
    assert torch.equal(scaled_round(values, form, "mx").restored(), restored)


def test_nv_scales_are_e4m3_times_one_number_of_the_tensor() -> None:
    values = matrix(20, 50)
    found = scaled_round(values, E2M1, "nv")
    tensor = values.abs().max() / (6 * 448)
    scales = whole(found.scale, values)
    parts = scales / tensor
    assert torch.allclose(parts, round_to(parts, E4M3), rtol=1e-6)
    for start in (0, 16, 32, 48):
        assert bool((scales[:, start : start + 16] == scales[:, start : start + 1]).all())
    assert parts.max() == pytest.approx(448)
    assert found.outside


def test_nv_agrees_with_torchao() -> None:
    nv = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")
    values = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
    tensor = nv.per_tensor_amax_to_scale(values.abs().max())
    scale, packed = nv.nvfp4_quantize(values, 16, tensor)
    codes = kernels.f4_unpacked_to_f32(kernels.unpack_uint4(packed))
    scales = scale.view(64, 8, 1).float().mul(tensor).expand(64, 8, 16).reshape(64, 128)
    found = scaled_round(values, E2M1, "nv")
    assert torch.allclose(whole(found.scale, values), scales, rtol=1e-6)
    assert (found.values != codes).float().mean() < 1e-3  # they multiply by a reciprocal


def test_a_finer_scale_loses_less() -> None:
    """Outliers in columns: the more scales there are, the less a large number takes from small ones."""
    values = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    values[:, 7] *= 200

    def lost(scaling: Scaling) -> float:
        return ((scaled_round(values, E2M1, scaling).values == 0) & (values != 0)).float().mean().item()

    assert lost("nv") < lost("mx") < lost("block") < lost("row")


def test_scales_rounded_up_to_powers_of_two_never_saturate() -> None:
    values = matrix()
    for scaling in ("tensor", "row"):
        plain, power = (scaled_round(values, E4M3, scaling, power_of_two=up) for up in (False, True))
        ratio = whole(power.scale, values) / whole(plain.scale, values)
        assert bool((ratio >= 1).all()) and bool((ratio < 2).all())
        mantissa, _ = torch.frexp(torch.as_tensor(power.scale))
        assert bool((mantissa == 0.5).all())
    whole_power = scaled_round(torch.tensor([[448.0 / 4]]), E4M3, "tensor", power_of_two=True)
    assert whole_power.scale == 1 / 4


def test_a_number_as_scaling_is_a_factor() -> None:
    values = torch.tensor([2.0**-26, 3.0])
    found = scaled_round(values, FORMATS["fp16"], 1024.0)
    assert found.restored().tolist() == [2.0**-26, 3.0]
    assert found.scale == 1 / 1024


def test_a_transposed_operand_keeps_its_scale_by_element() -> None:
    values = matrix()
    for scaling in WORDS:
        found = scaled_round(values, E4M3, scaling)
        assert torch.equal(found.t().restored(), found.restored().t())
