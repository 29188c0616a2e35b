"""Time left is learnt from trials of the same cell, and how a run ended gives the exit code."""

import time

import pytest
import synthetic

from paribus.run.events import Clock, Summary, Underway
from paribus.run.progress import ProgressReader

FIRST, SECOND, THIRD = synthetic.jobs(3)
OTHER = FIRST.model_copy(update={"group": "other", "trial_id": "other"})


def test_nothing_is_said_before_anything_is_known():
    assert Clock(2).left([FIRST], []) is None
    assert Clock(2).left([FIRST], [Underway(SECOND, time.monotonic(), 0.0)]) is None


def test_a_cell_s_own_trials_say_how_long_its_repeats_take():
    clock = Clock(1)
    clock.ended(FIRST, 10.0)
    clock.ended(OTHER, 100.0)
    assert clock.left([SECOND, THIRD], []) == 20.0
    assert clock.left([OTHER], []) == 100.0
    unknown = OTHER.model_copy(update={"group": "third"})
    assert clock.left([unknown], []) == 55.0


def test_workers_share_what_is_left():
    clock = Clock(2)
    clock.ended(FIRST, 10.0)
    assert clock.left([SECOND, THIRD], []) == 10.0


def test_a_running_trial_says_how_long_it_takes():
    running = Underway(FIRST, time.monotonic() - 5, 0.25)
    assert Clock(1).left([], [running]) == pytest.approx(15, abs=0.1)
    assert Clock(1).left([SECOND], [running]) == pytest.approx(35, abs=0.2)


@pytest.mark.parametrize(
    ("outcomes", "unsettled", "interrupted", "code"),
    [
        ({"finished": 3, "unsupported": 1, "out_of_memory": 1, "diverged": 1, "skipped": 1}, (), False, 0),
        ({"finished": 3, "killed": 1}, (), False, 1),
        ({"crashed": 1}, (), False, 1),
        ({"finished": 3}, ("abc",), False, 1),
        ({"crashed": 1}, ("abc",), True, 130),
    ],
)
def test_exit_codes(outcomes, unsettled, interrupted, code):
    summary = Summary(7, outcomes, 0, unsettled, interrupted=interrupted)
    assert summary.exit_code == code


def test_an_unfinished_line_of_progress_waits(tmp_path):
    path = tmp_path / "progress.jsonl"
    reader = ProgressReader(path)
    assert reader.latest() == []
    path.write_text('{"phase": "a", "step": 1, "steps": 4, "loss": 2.0}\n{"phase": "a", "st')
    assert reader.latest() == [{"phase": "a", "step": 1, "steps": 4, "loss": 2.0}]
    assert reader.share == 0.25
    assert reader.latest() == []
    with path.open("a") as file:
        file.write('ep": 2, "steps": 4, "loss": null}\n')
    assert reader.latest() == [{"phase": "a", "step": 2, "steps": 4, "loss": None}]
