"""The stopwatch counts training alone."""

from __future__ import annotations

import time

import pytest
import torch

from paribus.train.meter import Meter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands until it is set."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_time_between_start_and_stop_counts_and_pauses_do_not(clock: list[float]) -> None:
    meter = Meter(torch.device("cpu"))
    clock[0] += 50
    meter.start()
    for seconds in (1, 3, 2):
        clock[0] += seconds
        meter.step_done(tokens=10)
        with meter.paused():
            clock[0] += 1000
    clock[0] += 4
    meter.stop()
    meter.stop()
    cost = meter.cost(trainable_parameters=3, total_parameters=7)
    assert cost is not None
    assert cost.train_seconds == 10
    assert meter.steps == [1, 3, 2]
    assert cost.step_seconds_median == 2
    assert cost.tokens_per_second == 3
    assert (cost.trainable_parameters, cost.total_parameters) == (3, 7)
    assert cost.peak_memory_bytes is None


def test_a_pause_before_the_start_starts_nothing(clock: list[float]) -> None:
    meter = Meter(torch.device("cpu"))
    with meter.paused():
        clock[0] += 5
    meter.stop()
    assert meter.seconds == 0
    assert meter.cost(1, 1) is None


def test_a_failure_while_paused_lets_the_time_run_on(clock: list[float]) -> None:
    meter = Meter(torch.device("cpu"))
    meter.start()
    with pytest.raises(ValueError, match="scoring"), meter.paused():
        raise ValueError("scoring")
    clock[0] += 2
    meter.stop()
    assert meter.seconds == 2
