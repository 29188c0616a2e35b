"""A training that was stopped and went on ends exactly where the whole one ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import TECHNIQUES, End, Stopped, differing, go, stopped_and_resumed, stops_at

import tiny
from paribus.techniques import Full, Lora, Noise
from paribus.train.trainer import AblationTrainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> End:
    """Twelve steps, four an epoch, read at each epoch's end and every third step."""
    return go(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> End:
    """The same under techniques that measure as they go, some of them at the first step alone."""
    return go(tmp_path_factory.mktemp("measured"), TECHNIQUES)


@pytest.mark.parametrize(
    ("stop", "micro_batch", "resumed_at"),
    [
        (3, 0, 2),  # before an epoch's last step, of one micro-batch
        (4, 0, 4),  # at an epoch's end: its reading came after the checkpoint
        (5, 2, 4),  # between the micro-batches of a step
        (6, 0, 6),  # between two steps, after a reading and its checkpoint
        (10, 1, 10),  # in the last epoch
    ],
)
def test_resume_equals_whole(
    measured: End, tmp_path: Path, stop: int, micro_batch: int, resumed_at: int
) -> None:
    end = stopped_and_resumed(tmp_path, stop, micro_batch=micro_batch, techniques=TECHNIQUES)
    assert differing(end, measured) == []
    assert end.trained.resolved["resumed"] == {"at_steps": [resumed_at], "attempts": 2}
    assert "resumed" not in measured.trained.resolved
    assert end.trained.warnings == measured.trained.warnings


def test_an_attempt_that_dies_between_checkpoint_and_reading_reads_later(whole: End, tmp_path: Path) -> None:
    class NoReading(AblationTrainer):
        def read(self, moment: Any) -> None:
            if moment == "epoch":
                raise Stopped
            super().read(moment)

    with pytest.raises(Stopped):
        go(tmp_path, trainer_class=NoReading)
    assert differing(go(tmp_path), whole) == []


def test_many_attempts_equal_one(whole: End, tmp_path: Path) -> None:
    end = stopped_and_resumed(tmp_path, 3, 3, 6, 9)
    assert differing(end, whole) == []
    assert end.trained.resolved["resumed"] == {"at_steps": [2, 6, 8], "attempts": 4}  # one left no trace
    assert end.trained.cost is not None
    assert end.trained.cost.train_seconds > 0


def test_checkpoints_change_nothing_and_two_stay(whole: End, tmp_path: Path) -> None:
    without = go(tmp_path, every=1000)
    assert [name for name in differing(without, whole) if name != "optimizer"] == []
    assert not (tmp_path / "checkpoints").exists()
    go(tmp_path)
    standing = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert standing == {"step-00000008", "step-00000010"}


@pytest.mark.parametrize("splits", [1, 2])
def test_adapters_sgd_and_a_fixed_number_of_steps(tmp_path: Path, splits: int) -> None:
    given: dict[str, Any] = {
        "techniques": (Lora(r=4), Noise(alpha=5)),
        "model": tiny.gpt2,
        "splits": splits,
        "epochs": None,
        "max_steps": 7,
        "optimizer": "sgd",
        "lr_scheduler_type": "cosine",
    }
    whole = go(tmp_path / "whole", **given)
    assert differing(stopped_and_resumed(tmp_path / "stopped", 5, **given), whole) == []
    kept = tmp_path / "whole" / "checkpoints" / "step-00000006" / "weights.safetensors"
    assert kept.stat().st_size < 20_000  # the adapter alone


class Averaging(torch.nn.Module):
    """A running mean, as batch normalisation has one: a buffer that training changes."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("mean", torch.zeros(32))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * hidden.detach().mean((0, 1)))  # type: ignore[operator]
        return self.inner(hidden - self.mean)


def averaging() -> Any:
    model = tiny.llama()
    model.model.norm = Averaging(model.model.norm)
    return model


def test_buffers_that_change_are_saved_too(tmp_path: Path) -> None:
    whole = go(tmp_path / "whole", (Full(),), model=averaging)
    assert differing(stopped_and_resumed(tmp_path, 5, techniques=(Full(),), model=averaging), whole) == []


FAULTS = {
    "weights": ("weights", "paribus.techniques.tuning.weights.load", lambda *_: None),
    "sums": ("sums", "paribus.train.packed.put_back", lambda *_: None),
    "order": ("order", "paribus.train.order.Order.pass_over", lambda *_: None),
    "optimizer": (
        "weights",
        "paribus.train.trainer.AblationTrainer._load_optimizer_and_scheduler",
        lambda *_: None,
    ),
    "readings": ("readings", "resuming.Readings.restore", lambda *_: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_law_fails_where_something_is_not_put_back(
    whole: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    apart, place, planted = FAULTS[fault]
    with pytest.raises(Stopped):
        go(tmp_path, trainer_class=stops_at(7))
    monkeypatch.setattr(place, planted)
    assert apart in differing(go(tmp_path), whole)
