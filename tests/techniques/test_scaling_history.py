"""Scales from the steps before: what a history remembers, when it counts, and how it is taken up again."""

from __future__ import annotations

import math

import pytest
import torch

from paribus.techniques.precision.formats import E4M3
from paribus.techniques.precision.scaling import QUANTILE, History, Scaling, scaled_round


def stepping(history: History, largest: list[float], scaling: Scaling, first: int = 0) -> list[float]:
    """Round one tensor a step, each with its largest magnitude, and return the scale each step had."""
    scales = []
    for step, most in enumerate(largest, first):
        values = torch.tensor([[most, most / 2]])
        history.turn(step)
        scales.append(
            float(torch.as_tensor(scaled_round(values, E4M3, scaling, history=history).scale) * 448)
        )
        history.see(values.abs().amax(), step)
    return scales


def test_delayed_takes_the_largest_of_the_last_sixteen_steps_and_not_its_own() -> None:
    sizes = [1.0, 8.0, *[2.0] * 20]
    found = stepping(History(), sizes, "delayed")
    assert found == pytest.approx([1.0, 1.0, *[8.0] * 16, *[2.0] * 4])


def test_delayed_saturates_where_a_tensor_outgrows_its_past() -> None:
    history = History()
    stepping(history, [1.0], "delayed")
    history.turn(1)
    found = scaled_round(torch.tensor([[4.0, 0.5]]), E4M3, "delayed", history=history)
    assert found.values.tolist() == [[448.0, 224.0]]
    assert found.restored().tolist() == [[1.0, 0.5]]


def test_all_micro_batches_of_a_step_share_one_scale() -> None:
    history = History()
    stepping(history, [1.0], "delayed")
    scales = []
    for most in (2.0, 16.0, 4.0):
        history.turn(1)
        values = torch.tensor([[most]])
        scales.append(torch.as_tensor(scaled_round(values, E4M3, "delayed", history=history).scale) * 448)
        history.see(values.amax(), 1)
    assert scales == pytest.approx([1.0] * 3)
    assert stepping(history, [1.0], "delayed", first=2) == pytest.approx([16.0])


def test_steps_of_nothing_or_of_infinities_do_not_count() -> None:
    history = History()
    stepping(history, [0.0, 0.0], "delayed")
    assert stepping(history, [5.0], "delayed", first=2) == pytest.approx([5.0])
    history.see(torch.tensor(math.inf), 3)
    history.see(torch.tensor(math.nan), 4)
    assert stepping(history, [1.0], "delayed", first=5) == pytest.approx([5.0])


def test_calibrated_is_each_tensors_own_and_then_stays_at_the_quantile() -> None:
    sizes = [float(k) for k in range(1, 17)]
    found = stepping(History(), [*sizes, 100.0, 1.0, 1000.0], "calibrated")
    fixed = torch.tensor(sizes).quantile(QUANTILE).item()
    assert found == pytest.approx([*sizes, fixed, fixed, fixed])
    assert 15 < fixed < 16


@pytest.mark.parametrize("stopped", [3, 15, 16, 17, 20])
@pytest.mark.parametrize("scaling", ["delayed", "calibrated"])
def test_scales_go_on_from_what_a_history_held(scaling: Scaling, stopped: int) -> None:
    sizes = [1.0 + (7 * k) % 11 for k in range(30)]
    unbroken = stepping(History(), sizes, scaling)
    before = History()
    stepping(before, sizes[:stopped], scaling)
    after = History(largest=before.largest, now=before.now, step=before.step)
    assert stepping(after, sizes[stopped:], scaling, first=stopped) == unbroken[stopped:]


def test_without_a_history_remembering_is_as_tensor() -> None:
    values = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    for scaling in ("delayed", "calibrated"):
        for history in (None, History()):
            found = scaled_round(values, E4M3, scaling, history=history)
            assert torch.equal(found.restored(), scaled_round(values, E4M3, "tensor").restored())
