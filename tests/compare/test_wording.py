"""Numbers as a reader sees them."""

from __future__ import annotations

import pytest

from paribus.compare.wording import signed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (2.2e-16, "0"),  # what a sum in 64 bits leaves over
        (-1e-13, "0"),
        (1e-9, "+1e−9"),
        (-4e-4, "−0.0004"),
        (0.0123, "+0.012"),
        (-1.5, "−1.500"),
    ],
)
def test_a_difference_has_its_sign_and_rounding_is_nothing(value: float, text: str) -> None:
    assert signed(value) == text
