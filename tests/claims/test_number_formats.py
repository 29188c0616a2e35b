"""Claims on the bits of number formats; the id of each is in the name."""

from __future__ import annotations

import struct

import pytest
import torch

from judging import failed, judged, numbers
from paribus.compare.recompute.number_formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, Bits

DTYPES = {
    "FP32": torch.float32,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP8-E4M3": torch.float8_e4m3fn,
    "FP8-E5M2": torch.float8_e5m2,
}


@pytest.mark.parametrize("form", [FP8_E4M3, FP8_E5M2, FP16, BF16], ids=lambda form: form.name)
def test_every_code_is_read_as_torch_reads_it(form: Bits) -> None:
    stored = torch.uint8 if form.total == 8 else torch.uint16
    codes = range(2**form.total)
    theirs = torch.tensor(codes, dtype=stored).view(DTYPES[form.name]).double()
    ours = torch.tensor([form.value(code) for code in codes], dtype=torch.float64)
    assert torch.equal(theirs.isnan(), ours.isnan())
    assert torch.equal(theirs.nan_to_num(nan=0.0), ours.nan_to_num(nan=0.0))


@pytest.mark.parametrize("number", [6.5, -6.5, 1.0, 0.15625, 3.0e38])
def test_a56_bits_of_fp32_are_those_that_the_machine_stores(number: float) -> None:
    (stored,) = struct.unpack("<I", struct.pack("<f", number))
    held = struct.unpack("<f", struct.pack("<f", number))[0]
    assert FP32.code(held) == stored
    assert FP32.value(stored) == held


def test_a56_six_and_a_half() -> None:
    assert judged("A56").verdict == "supported"
    assert FP32.code(6.5) == 0x40D00000
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
