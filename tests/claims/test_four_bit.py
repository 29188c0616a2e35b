"""Claims of the chapter on weights in four bits; each name begins with its id."""

from __future__ import annotations

import pytest
import torch

from judging import judged, numbers
from paribus.techniques.tuning import quantised
from paribus.techniques.tuning.quantised import Format
from storing import error, gaussian, layer_of, storage

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""Dettmers et al. 2023, arXiv:2305.14314, appendix E."""


def levels(quantisation: Format) -> list[float]:
    """Return every value that a format can give a weight in a block whose largest is 1."""
    weight = torch.linspace(-1, 1, 64 * 64).view(64, 64)[torch.randperm(64)]
    weight[:, 0] = 1
    return sorted(set(layer_of(weight, storage(quantisation)).decoded().flatten().tolist()))


@pytest.mark.parametrize("claim", ["B33", "B34", "B54"])
def test_all_of_the_chapter_on_four_bits_holds(claim: str) -> None:
    assert judged(claim).verdict == "supported", judged(claim).reason


def test_b33_the_levels_are_those_of_the_paper() -> None:
    assert levels("nf4") == pytest.approx(NF4, abs=1e-6)
    assert numbers("B33") == {"bits": 4}


def test_int4_has_equal_steps_and_fp4_has_not() -> None:
    assert levels("int4") == pytest.approx([step / 7 for step in range(-7, 8)])
    steps = torch.tensor(levels("fp4")).diff()
    assert steps.max() > 10 * steps.min()


def test_b34_saves_half_a_bit_less_an_eighth_and_a_little() -> None:
    """A constant of 32 bits for 64 weights, or of 8 for 64 and of 32 for 256 x 64 and one mean."""
    found = numbers("B34")
    assert found["plain"] == 4 + 32 / 64
    assert found["double"] == 4 + 8 / 64 + 32 / (64 * 256) + 32 / 512**2
    assert found["saved"] == pytest.approx(0.373, abs=0.001)


@pytest.mark.parametrize("quantisation", ["nf4", "fp4", "int4"])
def test_b34_no_format_loses_by_it(quantisation: Format) -> None:
    weight = gaussian(256, 128)
    bits = []
    for double in (False, True):
        parts = quantised.parts(layer_of(weight, storage(quantisation, double=double)))
        stored = sum(t.numel() * t.element_size() for name in ("codes", "constants") for t in parts[name])
        bits.append(8 * stored / weight.numel())
    assert bits[0] - bits[1] == pytest.approx(0.373, abs=0.002)
    close = error(weight, storage(quantisation, double=True)) / error(weight, storage(quantisation))
    assert close == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("block", [32, 64, 256])
def test_b54_nf4_is_nearer_on_gaussian_weights_and_int4_on_uniform_ones_in_any_block(block: int) -> None:
    uniform = torch.rand(256, 256, generator=torch.Generator().manual_seed(0)) * 2 - 1
    weights = {"gaussian": gaussian(256, 256), "uniform": uniform}
    errors = {
        (name, of): error(weight, storage(name, block))
        for of, weight in weights.items()
        for name in ("nf4", "int4")
    }
    assert errors["nf4", "gaussian"] < 0.95 * errors["int4", "gaussian"]
    assert errors["int4", "uniform"] < 0.95 * errors["nf4", "uniform"]
