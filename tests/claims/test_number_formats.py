"""Claims on the bits of number formats; the id of each is in the name."""

from __future__ import annotations

import struct

import pytest
import torch

from judging import failed, judged, numbers
from paribus.compare.recompute.number_formats import FORMS
from paribus.techniques.precision import bits
from paribus.techniques.precision.formats import FP32

DTYPES = {
    "FP32": torch.float32,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP8-E4M3": torch.float8_e4m3fn,
    "FP8-E5M2": torch.float8_e5m2,
}


def test_the_formats_of_the_article_are_those_of_torch() -> None:
    assert {name: getattr(torch, form.dtype or "") for name, form in FORMS.items()} == DTYPES


@pytest.mark.parametrize("number", [6.5, -6.5, 1.0, 0.15625, 3.0e38])
def test_a56_bits_of_fp32_are_those_that_the_machine_stores(number: float) -> None:
    (stored,) = struct.unpack("<I", struct.pack("<f", number))
    held = struct.unpack("<f", struct.pack("<f", number))[0]
    assert bits.code_of(FP32, held) == stored
    assert bits.value_of(FP32, stored) == held


def test_a56_six_and_a_half() -> None:
    assert judged("A56").verdict == "supported"
    assert bits.code_of(FP32, 6.5) == 0x40D00000
    assert numbers("A56")["exponent"] == 0b10000001


def test_a57_the_table_of_formats() -> None:
    found = numbers("A57")
    for name, dtype in DTYPES.items():
        assert found[f"{name}.largest"] == torch.finfo(dtype).max
        assert found[f"{name}.bits"] == torch.finfo(dtype).bits
    digits = [found[f"{name}.digits"] for name in DTYPES]
    assert digits == pytest.approx([7.22, 3.31, 2.41, 1.20, 0.90], abs=0.005)
    assert judged("A57").verdict == "supported"
    assert "FP16's 65504 is cut off" in judged("A57").reason


@pytest.mark.parametrize(("claim", "largest", "least"), [("A58", 448, 2**-9), ("A60", 57344, 2**-16)])
def test_a58_a60_the_ends_of_the_8_bit_formats(claim: str, largest: float, least: float) -> None:
    found = numbers(claim)
    assert (found["largest"], found["least"]) == (largest, least)
    assert not failed(claim)
    assert judged(claim).verdict == "supported"


def cast_error(dtype: torch.dtype) -> float:
    """Return the error of torch's own cast of random Gaussian numbers, scaled by their largest."""
    values = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0))
    scale = torch.finfo(dtype).max / values.abs().max()
    return 100 * (((values * scale).to(dtype).float() / scale - values).norm() / values.norm()).item()


def test_a85_the_limit_of_five_percent_leaves_out_the_format_of_its_own_weights() -> None:
    found = numbers("A85")
    assert found["error of E4M3"] == pytest.approx(cast_error(torch.float8_e4m3fn), rel=0.02)
    assert found["error of E5M2"] == pytest.approx(cast_error(torch.float8_e5m2), rel=0.02)
    assert found["error of E4M3"] < 5 < found["error of E5M2"] == found["fp8.error"]
    assert judged("A85").verdict == "contradicted"
