"""When validation is best, what going on costs, and from when on the training sample is known by heart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_results import plan_of, record

from paribus.compare.findings import Findings
from paribus.compare.memorisation import memorisation
from paribus.record.result import Reading
from paribus.record.store import Store


def _readings(job: Any) -> list[Reading]:
    """Validation is least at epoch 2 of 4, and more is lost without weight decay."""
    small = not job.trial.training.weight_decay
    validation = [2.0, 1.0, 0.8, 0.9, 1.4 if small else 1.0]
    train = [2.0, 0.9, 0.5, 0.05, 0.01]
    right = [0.1, 0.5, 0.9, 0.995, 1.0] if small else [0.1, 0.3, 0.5, 0.7, 0.8]
    return [
        Reading(
            step=4 * epoch, epoch=float(epoch), split=split, group=group, loss=loss + job.trial.seed / 100,
            accuracy=right[epoch], targets=10, examples=5,
        )
        for epoch in range(5)
        for split, group, loss in (
            ("train_sample", "all", train[epoch]),
            ("validation", "same_wording", validation[epoch]),
            ("test", "same_wording", validation[epoch] + 0.1),
        )
    ]  # fmt: skip


def test_one_row_for_each_setting_of_data_and_training(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "study", vary="{training.weight_decay: [0.1, 0], neftune_noise_alpha: [0, 5]}")
    store = Store(tmp_path / "results")
    for job in plan.jobs:
        record(store, job, readings=_readings)
    large, small = memorisation(Findings(plan, store)).rows
    assert large["best"].mean == small["best"].mean == 2
    assert large["least"].mean == small["least"].mean == pytest.approx(0.81)
    assert (large["rise"].mean, small["rise"].mean) == (pytest.approx(0.2), pytest.approx(0.6))
    assert small["gap"].mean == pytest.approx(1.4 + 0.1 - 0.01)
    assert (large["right"].mean, small["right"].mean) == (80, 100)
    assert (large["by_heart"], small["by_heart"]) == ("never [0 of 3]", "3.0 [3 of 3]")
