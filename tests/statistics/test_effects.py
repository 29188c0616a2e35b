"""Factorial effects against the pilot plant of Box, Hunter and Hunter, which was run twice."""

from __future__ import annotations

import pytest

from paribus.statistics import Interval, interactions, main_effects
from paribus.statistics.effects import Place

FACTORS = ("temperature", "concentration", "catalyst")
BASE = ("160", "20", "A")
# Box, Hunter and Hunter 2005, Statistics for Experimenters, table 5.1 and 5.3: yields of two runs each.
YIELDS: dict[Place, dict[int, float]] = {
    ("160", "20", "A"): {1: 59, 2: 61}, ("180", "20", "A"): {1: 74, 2: 70},
    ("160", "40", "A"): {1: 50, 2: 58}, ("180", "40", "A"): {1: 69, 2: 67},
    ("160", "20", "B"): {1: 50, 2: 54}, ("180", "20", "B"): {1: 81, 2: 85},
    ("160", "40", "B"): {1: 46, 2: 44}, ("180", "40", "B"): {1: 79, 2: 81},
}  # fmt: skip


def test_main_effects_of_the_pilot_plant() -> None:
    """The book's main effects: temperature 23, concentration -5, catalyst 1.5."""
    found = {effect.factors: effect for effect in main_effects(FACTORS, YIELDS, BASE)}
    means = {factors: effect.estimate.mean for factors, effect in found.items() if effect.estimate}
    assert means == pytest.approx({("temperature",): 23.0, ("concentration",): -5.0, ("catalyst",): 1.5})
    assert all(effect.contexts == 4 for effect in found.values())


def test_interactions_of_the_pilot_plant() -> None:
    """The book halves a difference of differences: 1.5, 10 and 0 are 3, 20 and 0 here."""
    found = {effect.factors: effect.estimate for effect in interactions(FACTORS, YIELDS, BASE)}
    assert {factors: estimate.mean for factors, estimate in found.items() if estimate} == pytest.approx(
        {
            ("temperature", "concentration"): 3.0,
            ("temperature", "catalyst"): 20.0,
            ("concentration", "catalyst"): 0.0,
        }
    )


def test_seeds_are_the_n_of_the_interval() -> None:
    """Temperature by run: 15, 19, 31, 33 and 9, 9, 31, 37, so 24.5 and 21.5; t(1) = 12.706."""
    effect = main_effects(FACTORS, YIELDS, BASE)[0]
    assert effect.differences == pytest.approx((24.5, 21.5))
    assert effect.estimate is not None
    assert effect.estimate.interval is not None
    half = 12.7062047 * 1.5
    assert (effect.estimate.n, effect.estimate.interval.high) == (2, pytest.approx(23 + half))


def test_a_hole_leaves_out_its_setting_in_every_seed() -> None:
    """Without one run of (180, 40, A), temperature is averaged over the three settings both seeds have."""
    grid = {place: dict(values) for place, values in YIELDS.items()}
    del grid["180", "40", "A"][2]
    effect = main_effects(FACTORS, grid, BASE)[0]
    assert effect.contexts == 3
    assert effect.differences == pytest.approx(((15 + 31 + 33) / 3, (9 + 31 + 37) / 3))


def test_an_interaction_without_its_corners_is_not_made_up() -> None:
    grid = {place: values for place, values in YIELDS.items() if place[:2] != ("180", "40")}
    factors = {effect.factors for effect in interactions(FACTORS, grid, BASE)}
    assert factors == {("temperature", "catalyst"), ("concentration", "catalyst")}


def test_a_nested_effect_that_does_not_depend_on_the_other_factor_has_no_interaction() -> None:
    grid = {
        (a, b): {s: x + y + 0.1 * s for s in range(3)}
        for a, x in (("0", 0), ("1", 2.0))
        for b, y in (("l", 0), ("m", 5.0))
    }
    (effect,) = interactions(("a", "b"), grid, ("0", "l"))
    assert effect.estimate is not None
    assert effect.estimate.mean == pytest.approx(0.0, abs=1e-12)
    assert effect.estimate.interval is not None
    assert effect.estimate.interval.inside(Interval(-1e-9, 1e-9))
