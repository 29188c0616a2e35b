"""Holm's adjustment, by its textbook example and its laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.statistics import holm


def test_holm_of_the_textbook_example() -> None:
    """Four tests at 0.05 of which H1 and H4 alone are rejected: Wikipedia, Holm-Bonferroni method."""
    adjusted = holm([0.01, 0.04, 0.03, 0.005])
    assert adjusted == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert [p < 0.05 for p in adjusted] == [True, False, False, True]
    assert holm([]) == ()
    assert holm([0.6, 0.7]) == (1.0, 1.0)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_never_lowers_a_p_and_keeps_the_order(ps: list[float]) -> None:
    adjusted = holm(ps)
    assert all(p <= q <= 1 for p, q in zip(ps, adjusted, strict=True))
    ranked = [q for _, q in sorted(zip(ps, adjusted, strict=True))]
    assert ranked == sorted(ranked)
