"""A base stands at the floor where guessing would do as well, and a loss could not be seen."""

from __future__ import annotations

from typing import Any

import pytest

from paribus.record.result import Figure
from paribus.score.floor import floor_of


def figure(right: int, n: int, chance: float | None, **more: Any) -> Figure:
    return Figure(step=0, task="t", metric="acc,none", value=right / n, n=n, chance=chance, **more)


@pytest.mark.parametrize(
    ("right", "n", "chance", "floor"),
    [
        (25, 100, 0.25, True),
        (32, 100, 0.25, True),  # guessing gets 32 or more of 100 in 6.9 % of samples
        (33, 100, 0.25, False),  # and 33 or more in 4.5 %
        (0, 100, 0.25, True),
        (3, 3, 0.5, True),  # three of three is a guess in 12.5 %
        (5, 5, 0.5, False),
        (0, 10, 0.0, True),
        (1, 1000, 0.0, False),
        (0, 10, None, True),
        (1, 10, None, False),
    ],
)
def test_the_exact_binomial_test_decides(right: int, n: int, chance: float | None, floor: bool) -> None:
    assert floor_of(figure(right, n, chance)) is floor


def test_where_less_is_better_there_is_no_floor() -> None:
    assert not floor_of(figure(0, 10, None, higher_is_better=False))
