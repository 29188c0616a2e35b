"""A training that was stopped and went on ends exactly where the whole one ends, or begins anew."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from paribus.plan.trial import Training
from paribus.techniques import Accumulation, Dropout, Fp8, Full, Live, Lora, NoEffect, Noise, Technique
from paribus.train import checkpoint, packed
from paribus.train.checkpoint import Checkpoints
from paribus.train.reading import Reader
from paribus.train.session import Trained, optimizer_steps, train
from paribus.train.trainer import AblationTrainer

EVERY = 2


class Stopped(Exception):
    """Somebody pulled the plug."""


def stops_at(step: int, micro_batch: int = 0) -> type[AblationTrainer]:
    """Return a trainer that dies in the micro-batch of that number after so many optimizer steps."""

    class Stops(AblationTrainer):
        def training_step(self, *given: Any, **named: Any) -> Any:
            self.seen = (getattr(self, "seen", 0) + 1) if self.live.step == self.state.global_step else 1
            if self.state.global_step == step and self.seen > micro_batch:
                raise Stopped
            return super().training_step(*given, **named)

    return Stops


class Readings:
    """A scorer in small: the sum of the weights at each reading."""

    def __init__(self) -> None:
        self.model: Any = None
        self.read: list[tuple[int, float, float]] = []

    def __call__(self, step: int, epoch: float) -> None:
        self.read.append((step, epoch, float(sum(p.double().sum() for p in self.model.parameters()))))

    def state(self) -> dict[str, Any]:
        return {"read": self.read}

    def restore(self, state: dict[str, Any]) -> None:
        self.read = [tuple(one) for one in state["read"]]


@dataclass
class End:
    """Where a training ended."""

    trained: Trained
    weights: dict[str, torch.Tensor]
    proofs: list[dict[str, Any]]
    live: Live
    readings: list[list[tuple[int, float, float]]]
    sums: dict[str, Any]
    last: dict[str, Any]
    """The optimizer and scheduler as the last checkpoint has them."""


TECHNIQUES: tuple[Technique, ...] = (Full(), Fp8(compute="emulated"), Noise(alpha=5), Dropout(p=0.1))


def go(
    folder: Path,
    techniques: Sequence[Technique] = TECHNIQUES,
    *,
    trainer_class: type[AblationTrainer] = AblationTrainer,
    model: Any = tiny.llama,
    splits: int = 3,
    key: str = "this one",
    every: int = EVERY,
    device: Any = None,
    **training: Any,
) -> End:
    """Train 20 rows in steps of 6, so that an epoch's last step takes one micro-batch of two rows."""
    torch.set_num_threads(1)
    chosen = Training(
        **{"effective_batch_size": 6, "epochs": 3, "learning_rate": 1e-3, "warmup_steps": 2, **training}
    )
    rows, readings = tiny.rows(20), [Readings(), Readings()]
    live = Live(seed=0, steps=optimizer_steps(chosen, len(rows)))
    parts = {str(index): one for index, one in enumerate(readings)}
    checkpoints = Checkpoints(folder / "checkpoints", every, key, parts)
    used = (*techniques, Accumulation(steps=splits))
    trained_model = model()
    with ExitStack() as stack:
        for technique in used:
            trained_model = stack.enter_context(technique.applied(trained_model, live))
        for one in readings:
            one.model = trained_model
        trained = train(
            trained_model,
            rows,
            chosen,
            live,
            techniques=used,
            pad_token_id=0,
            readers=[Reader("epoch", readings[0]), Reader(3, readings[1])],
            listener=lambda step, steps, loss: None,
            folder=folder,
            trainer_class=trainer_class,
            checkpoints=checkpoints,
        )
        weights = {name: p.detach().clone() for name, p in trained_model.named_parameters()}
        proofs = [technique.proof(trained_model, live) for technique in used]
    standing = checkpoints.standing()
    last = (
        {
            name: torch.load(standing[-1] / f"{name}.pt", weights_only=True)
            for name in ("optimizer", "scheduler")
        }
        if standing
        else {}
    )
    sums = {name: packed.sums(one) for name, one in live.observed.items()}
    return End(trained, weights, proofs, live, [one.read for one in readings], sums, last)


def same(one: Any, other: Any) -> bool:
    """Compare to the last bit, whatever holds the numbers."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def differing(one: End, other: End) -> list[str]:
    """Name each thing in which two trainings ended apart."""
    pairs = {
        "weights": (one.weights, other.weights),
        "curve": (one.trained.curve, other.trained.curve),
        "curve hash": (one.trained.curve_sha256, other.trained.curve_sha256),
        "order": (one.trained.order_sha256, other.trained.order_sha256),
        "counts": (one.trained.counts, other.trained.counts),
        "micro-batches": (one.live.micro_batches, other.live.micro_batches),
        "proofs": (one.proofs, other.proofs),
        "sums": (one.sums, other.sums),
        "readings": (one.readings, other.readings),
        "optimizer": (one.last, other.last),
    }
    return [name for name, (first, second) in pairs.items() if not same(first, second)]


def stopped_and_resumed(folder: Path, *steps: int, micro_batch: int = 0, **given: Any) -> End:
    """Stop at each of the steps in turn, and let the last attempt run to its end."""
    for step in steps:
        with pytest.raises(Stopped):
            go(folder, trainer_class=stops_at(step, micro_batch), **given)
    return go(folder, **given)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> End:
    """Twelve steps, four an epoch, read at each epoch's end and every third step."""
    return go(tmp_path_factory.mktemp("whole"))


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
    whole: End, tmp_path: Path, stop: int, micro_batch: int, resumed_at: int
) -> None:
    end = stopped_and_resumed(tmp_path, stop, micro_batch=micro_batch)
    assert differing(end, whole) == []
    assert end.trained.resolved["resumed"] == {"at_steps": [resumed_at], "attempts": 2}
    assert "resumed" not in whole.trained.resolved
    assert end.trained.warnings == whole.trained.warnings


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
    "readings": ("readings", "test_checkpoint.Readings.restore", lambda *_: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_law_fails_where_something_is_not_put_back(
    whole: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    apart, place, planted = FAULTS[fault]
    with pytest.raises(Stopped):
        go(tmp_path, trainer_class=stops_at(7))
    monkeypatch.setattr(place.replace("test_checkpoint", __name__), planted)
    try:
        assert apart in differing(go(tmp_path), whole)
    except NoEffect:  # what proves the effect was measured before the stop
        assert fault == "sums"


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step-*"))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.pt", "state.json", "checkpoint.json"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(whole: End, tmp_path: Path, name: str) -> None:
    with pytest.raises(Stopped):
        go(tmp_path, trainer_class=stops_at(7))
    path = newest(tmp_path) / name
    path.write_text("{") if name == "checkpoint.json" else damage(path)
    end = go(tmp_path)
    assert differing(end, whole) == []
    assert end.trained.resolved["resumed"]["at_steps"] == [4]
    assert "the checkpoint at step 6 was not used: it is damaged" in end.trained.warnings[-1]


def test_where_all_are_damaged_training_begins_anew(whole: End, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        go(tmp_path, trainer_class=stops_at(7))
    for path in (tmp_path / "checkpoints").iterdir():
        (path / "rng_state.pth").unlink()
    end = go(tmp_path)
    assert differing(end, whole) == []
    assert "resumed" not in end.trained.resolved
    assert len(end.trained.warnings) == len(whole.trained.warnings) + 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": "another"}, "it is of another trial"),
        ({"splits": 1}, "micro_batch 2, now 6"),
        ({"versions": {"torch": "1.0"}}, "it was made with torch"),
        ({"model": tiny.gpt2}, "is not what it was"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Stopped):
        go(tmp_path, (Full(),), trainer_class=stops_at(3))
    if versions := change.pop("versions", None):
        found = checkpoint.versions()
        monkeypatch.setattr(checkpoint, "versions", lambda: found | versions)
    end = go(tmp_path, (Full(),), **change)
    assert "resumed" not in end.trained.resolved
    assert reason in end.trained.warnings[-1]
    assert differing(end, go(tmp_path / "fresh", (Full(),), **change)) == []


@pytest.mark.parametrize("point", ["before_seal", "before_rename"])
def test_a_full_disk_costs_the_checkpoint_alone(
    whole: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setenv("PARIBUS_FAULT", f"ENOSPC:*:{point}:*")
    end = go(tmp_path)
    assert [name for name in differing(end, whole) if name != "optimizer"] == []
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert "5 checkpoints could not be written, first at step 2: [Errno 28]" in end.trained.warnings[-1]


@pytest.mark.parametrize("point", ["before_seal", "before_rename", "after_checkpoint"])
def test_a_kill_while_saving_leaves_the_older_one(whole: End, tmp_path: Path, point: str) -> None:
    pid = os.fork()
    if pid == 0:
        os.environ["PARIBUS_FAULT"] = f"kill:*:{point}:step-00000006"
        go(tmp_path)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 9
    end = go(tmp_path)
    assert differing(end, whole) == []
    assert end.trained.resolved["resumed"]["at_steps"] == [6 if point == "after_checkpoint" else 4]
    assert not list((tmp_path / "checkpoints").glob(".tmp-*"))


def test_state_comes_back_to_its_last_bit_and_what_cannot_is_named(tmp_path: Path) -> None:
    tree = {"a": [1, 0.1, float("inf"), None, "ü", True], 3: {"b": torch.tensor(0.1)}, "c": {}}
    packed.write(tree, tmp_path)
    assert same(packed.read(tmp_path), tree)
    with pytest.raises(TypeError, match=r"state\.x\[1\] is a Path|state\.x\[1\] is a PosixPath"):
        packed.write({"x": [1, Path()]}, tmp_path)


def test_a_manifest_says_what_made_it(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        go(tmp_path, trainer_class=stops_at(3))
    manifest = json.loads((newest(tmp_path) / "checkpoint.json").read_text())
    assert (manifest["step"], manifest["key"]) == (2, "this one")
    assert manifest["versions"]["torch"] == torch.__version__
    assert set(manifest["contents"]) == {
        "optimizer.pt", "rng_state.pth", "scheduler.pt", "state.json", "state.safetensors",
        "trainer_state.json", "weights.safetensors",
    }  # fmt: skip
    shutil.rmtree(tmp_path)
