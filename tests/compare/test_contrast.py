"""Levels against the baseline: pairing, clustering by seed, correction, verdicts, and what did not finish."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from paribus.compare.contrast import Contrast, Read, Rules, cell_contrasts, level_contrasts
from paribus.compare.readings import Metric
from paribus.statistics import paired_difference

LOSS = Metric("test", "g", "loss")


@dataclass(frozen=True)
class FakeCell:
    coordinates: dict[str, str]
    trials: dict[int, str]
    is_baseline: bool = False
    is_control: bool = False
    levels: dict[str, str] = field(default_factory=dict)
    group: str = ""
    factor: str | None = None


def cell(alpha: str, tuning: str, seeds: int = 3, **kwargs: object) -> FakeCell:
    trials = {seed: f"{alpha}/{tuning}/{seed}" for seed in range(seeds)}
    return FakeCell({"alpha": alpha, "tuning": tuning}, trials, **kwargs)  # type: ignore[arg-type]


def grid(seeds: int = 3) -> list[FakeCell]:
    return [
        cell(a, t, seeds, is_baseline=(a, t) == ("0", "full")) for a in ("0", "5") for t in ("full", "lora")
    ]


def read(cells: list[FakeCell], values: dict[str, float], **rules: object) -> Read:
    kept = Rules(**{"margin": 0.05, **rules})  # type: ignore[arg-type]
    return Read(cells, values, set(values), LOSS, "last", kept)  # type: ignore[arg-type]


def additive(cells: list[FakeCell], noise: tuple[float, ...] = (0.001, -0.002, 0.001)) -> dict[str, float]:
    """Give alpha 5 an effect of -0.2, LoRA +0.1, a seed its own level, and every cell a little noise."""
    found = {}
    for position, one in enumerate(cells):
        for seed, trial in one.trials.items():
            shift = -0.2 * (one.coordinates["alpha"] == "5") + 0.1 * (one.coordinates["tuning"] == "lora")
            found[trial] = 1.0 + seed + shift + noise[(seed + position) % 3]
    return found


def by_level(contrasts: list[Contrast]) -> dict[str, Contrast]:
    return {contrast.level: contrast for contrast in contrasts}


def test_a_grid_is_paired_over_everything_else_and_its_n_is_the_seeds() -> None:
    cells = grid()
    found = by_level(level_contrasts(read(cells, values := additive(cells))))
    assert set(found) == {"5", "lora"}
    alpha = found["5"]
    assert (alpha.pairs, alpha.contexts) == (6, 2)
    by_hand = [
        sum(values[f"5/{t}/{s}"] - values[f"0/{t}/{s}"] for t in ("full", "lora")) / 2 for s in range(3)
    ]
    assert alpha.difference == paired_difference(by_hand)
    assert alpha.difference is not None
    assert alpha.difference.n == 3


def test_directions_become_verdicts() -> None:
    cells = grid()
    found = by_level(level_contrasts(read(cells, additive(cells))))
    assert (found["5"].verdict, found["lora"].verdict) == ("better", "worse")


def test_a_small_difference_is_equivalent_only_within_the_margin() -> None:
    cells = [cell("0", "full", is_baseline=True), cell("5", "full")]
    values = {f"{a}/full/{s}": s + (0.004 if a == "5" and s != 1 else 0.0) for a in "05" for s in range(3)}
    assert level_contrasts(read(cells, values))[0].verdict == "equivalent"
    assert level_contrasts(read(cells, values, margin=0.001))[0].verdict == "undecided"
    assert level_contrasts(read(cells, values, margin=None))[0].tost_p is None


def test_a_real_difference_within_the_margin_is_negligible() -> None:
    cells = [cell("0", "full", is_baseline=True), cell("5", "full")]
    effect = (0.004, 0.0041, 0.0039)
    values = {f"{a}/full/{s}": s + (effect[s] if a == "5" else 0.0) for a in "05" for s in range(3)}
    assert level_contrasts(read(cells, values))[0].verdict == "negligible"
    assert level_contrasts(read(cells, values, margin=0.004))[0].verdict == "worse"


def test_an_unfinished_trial_makes_its_arm_conditional_and_never_equivalent() -> None:
    cells = [cell("0", "full", 4, is_baseline=True), cell("5", "full", 4)]
    values = {f"{a}/full/{s}": s + (0.004 if a == "5" and s != 1 else 0.0) for a in "05" for s in range(4)}
    del values["5/full/3"]
    found = level_contrasts(read(cells, values))[0]
    assert (found.arm.finished, found.arm.planned, found.conditional) == (3, 4, True)
    assert (found.pairs, found.verdict) == (3, "undecided")


def test_one_pair_has_no_interval_and_no_pair_no_difference() -> None:
    cells = [cell("0", "full", 1, is_baseline=True), cell("5", "full", 1)]
    one = level_contrasts(read(cells, {"0/full/0": 1.0, "5/full/0": 0.5}))[0]
    assert one.verdict == "one pair"
    assert one.difference is not None
    assert one.difference.interval is None
    none = level_contrasts(read(cells, {"0/full/0": 1.0}))[0]
    assert (none.verdict, none.difference, none.holm_p) == ("no pair", None, None)


def test_a_trial_on_both_sides_or_twice_gives_one_pair_at_most() -> None:
    base = cell("0", "full", is_baseline=True)
    same = FakeCell({"alpha": "0.0", "tuning": "full"}, base.trials)
    assert level_contrasts(read([base, same], dict.fromkeys(base.trials.values(), 1.0)))[0].pairs == 0
    shared = cell("5", "full")
    again = FakeCell({"alpha": "5", "tuning": "lora"}, shared.trials)
    lora = cell("0", "lora")
    values = additive([base, shared, lora])
    alpha = by_level(level_contrasts(read([base, shared, again, lora], values)))["5"]
    assert (alpha.pairs, alpha.contexts) == (3, 2)


def test_holm_is_over_an_axis_or_over_the_study() -> None:
    cells = [cell("0", "full", is_baseline=True), cell("5", "full"), cell("10", "full"), cell("0", "lora")]
    noisy = (0.01, -0.03, 0.02)
    values = additive(cells, noisy)
    within = by_level(level_contrasts(read(cells, values)))
    across = by_level(level_contrasts(read(cells, values, family="study")))
    lora = within["lora"]
    assert lora.difference is not None
    assert lora.holm_p == lora.difference.p
    assert across["lora"].holm_p == pytest.approx(2 * (lora.difference.p or 0))
    assert (within["lora"].family, across["lora"].family) == ("tuning", "study")


def test_a_setting_that_does_not_exist_elsewhere_does_not_stop_a_pairing() -> None:
    base = FakeCell({"tuning": "full", "tuning.r": "-"}, {0: "a0", 1: "a1"}, is_baseline=True)
    four = FakeCell({"tuning": "lora", "tuning.r": "4"}, {0: "b0", 1: "b1"})
    values = {"a0": 1.0, "a1": 1.1, "b0": 0.9, "b1": 1.05}
    found = level_contrasts(read([base, four], values))
    assert [(c.axis, c.level, c.pairs) for c in found] == [("tuning", "lora", 2)]
    assert cell_contrasts(read([base, four], values))["lora", "4"].axis == "tuning"


def test_cells_that_differ_in_several_axes_form_a_family_of_their_own() -> None:
    cells = grid()
    found = cell_contrasts(read(cells, additive(cells)))
    both = found["5", "lora"]
    assert (both.axis, both.level, both.baseline, both.family) == (None, "5, lora", "0, full", "cells")
    assert (found["5", "full"].axis, found["5", "full"].family) == ("alpha", "cells")


def test_without_a_baseline_there_is_nothing_to_compare() -> None:
    cells = [cell("5", "full")]
    assert level_contrasts(read(cells, {})) == []
    assert cell_contrasts(read(cells, {})) == {}
