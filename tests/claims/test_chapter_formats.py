"""Claims of the chapter on number formats and their roles; each name begins with its id."""

from __future__ import annotations

import pytest
import torch

from judging import failed, judged, numbers
from paribus.compare.recompute import recompute

BITS = {"fp32": (1, 8, 23), "fp16": (1, 5, 10), "bf16": (1, 8, 7), "e4m3": (1, 4, 3), "e5m2": (1, 5, 2)}
"""Sign, exponent and mantissa: IEEE 754, and Micikevicius et al. 2022, arXiv:2209.05433, table 1."""


@pytest.mark.parametrize("claim", ["B03", "B04", "B05", "B07", "B08", "B11"])
def test_all_of_the_chapter_on_formats_holds(claim: str) -> None:
    assert judged(claim).verdict == "supported", judged(claim).reason


@pytest.mark.parametrize("name", BITS)
def test_b03_bits_are_those_of_the_standards(name: str) -> None:
    found = numbers("B03")
    assert tuple(found[f"{name}.{part}"] for part in ("sign", "exponent", "mantissa")) == BITS[name]


def test_b03_reaches_are_printed_by_order_of_magnitude() -> None:
    found = numbers("B03")
    assert 10 ** found["fp16.range"] == pytest.approx(65504)
    assert 10 ** found["fp32.range"] == pytest.approx((2 - 2**-23) * 2.0**127)
    assert 10 ** found["bf16.range"] == pytest.approx((2 - 2**-7) * 2.0**127)


def test_b04_half_of_the_least_number_of_fp16_is_the_largest_that_is_lost() -> None:
    lost = numbers("B04")["zero_up_to"]
    assert lost == 2**-25
    assert torch.tensor(lost).half() == 0 != torch.tensor(lost * 1.001).half()


def test_b08_a_third_moment_would_be_seen() -> None:
    assert numbers("B08") == {"master": 4, "first_moment": 4, "second_moment": 4, "state": 12}


def test_b11_says_the_opposite_of_the_article() -> None:
    assert judged("A61").verdict == "contradicted"
    assert "A61" in judged("B11").row.contradicts


@pytest.mark.parametrize("claim", ["B07", "B11"])
def test_b07_b11_each_part_is_a_statement_of_its_own(claim: str) -> None:
    assert len(recompute(claim).statements) == 3
    assert failed(claim) == []
