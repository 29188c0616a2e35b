"""A worker killed in the middle of training: the next attempt goes on and ends where the whole run ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import synthetic

from paribus.machine import Machine
from paribus.plan.trial import CHECKPOINTS, Heldout, Job, Training, Trial
from paribus.record import lease
from paribus.record.attempt import read_end
from paribus.record.result import Killed
from paribus.record.store import Recorded, Store
from paribus.run.options import Options
from paribus.run.supervisor import run_jobs
from paribus.sources.blocks import EmbeddedData, EmbeddedModel
from paribus.sources.load import load_splits
from paribus.sources.models import locate
from paribus.techniques import Accumulation, Dropout, Fp8, Lora, Noise
from paribus.worker.unchanged import content

MACHINE = Machine(name="test machine", memory_bytes=2**34, cores=1)


def job(seed: int, **chosen: Any) -> Job:
    """Two epochs of three steps; the last step of each takes half of its micro-batches."""
    data = EmbeddedData(train_examples=20, validation_examples=4, test_examples=4)
    trial = Trial(
        task="instruction",
        model=EmbeddedModel(),
        data=data,
        content=content(locate(EmbeddedModel(), Path()), load_splits(data, Path()), data),
        training=Training(effective_batch_size=8, epochs=2, learning_rate=2e-3, max_length=64),
        tuning=Lora(r=4),
        precision=Fp8(compute="emulated"),
        neftune_noise_alpha=Noise(alpha=5),
        dropout=Dropout(p=0.1),
        gradient_accumulation_steps=Accumulation(steps=4),
        seed=seed,
    )
    scores = (Heldout(train_sample=4), Heldout(every=2, train_sample=0))
    whole = Job(trial_id=trial.trial_id, group=trial.group, trial=trial, scores=scores, keep="all")
    return whole.model_copy(update=chosen)


def ran(base: Path, given: Job) -> tuple[Recorded, Store]:
    store = Store(base / "results" / "study")
    options = Options(max_workers=1, scratch=base / "scratch")
    assert run_jobs([given], base, store, MACHINE, options).outcomes == {"finished": 1}
    return store.recorded()[given.trial_id], store


def test_a_killed_worker_goes_on_and_its_result_is_that_of_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = ran(tmp_path / "whole", job(0))
    monkeypatch.setenv("PARIBUS_FAULT", "kill:worker:after_checkpoint:step-0000000[34]")
    monkeypatch.setenv("PARIBUS_FAULT_ONCE", str(tmp_path / "killed"))
    given = job(0, checkpoint_every=1)
    found, store = ran(tmp_path / "stopped", given)
    attempts = store.folder(given.trial_id) / "attempts"
    assert [read_end(lease.numbered(attempts, n)).outcome for n in lease.numbers(attempts)] == [
        Killed(signal=9),
        found.result.result,
    ]
    assert found.result.resolved.pop("resumed") == {"at_steps": [3], "attempts": 2}
    for name in ("identity", "counts", "proof", "resolved", "warnings"):
        assert getattr(found.result, name) == getattr(whole.result, name), name
    assert found.scores == whole.scores
    assert {reading.step for score in found.scores for reading in score.curve} == {0, 2, 3, 4, 6}
    for kind in ("curves.parquet", "items/*.parquet", "scores/*.json"):
        files = {
            base: {path.name: path.read_bytes() for path in (tmp_path / base).glob(f"results/*/*/{kind}")}
            for base in ("whole", "stopped")
        }
        assert files["whole"] == files["stopped"]
        assert files["whole"]
    left = {path.name for path in (tmp_path / "stopped" / "scratch" / given.trial_id).iterdir()}
    assert left == {"best", "last"}


def test_what_the_next_attempt_needs_stays_until_the_trial_is_settled(tmp_path: Path) -> None:
    one, other = synthetic.jobs(2)
    scratch, store = tmp_path / "scratch", Store(tmp_path / "results" / "study")
    for given in (one, other):
        (scratch / given.trial_id / CHECKPOINTS / "step-00000001").mkdir(parents=True)
    synthetic.behave(tmp_path, 0, "die")
    heard: list[Any] = []

    def hear(event: Any) -> None:
        if event.kind == "retried":
            heard.append((scratch / one.trial_id / CHECKPOINTS).is_dir())

    kept = other.model_copy(update={"keep": "last"})
    options = synthetic.options(scratch=scratch)
    run_jobs([one, kept], tmp_path, store, synthetic.MACHINE, options, listener=hear)
    assert heard == [True]
    assert not (scratch / one.trial_id).exists()
    assert [path.name for path in (scratch / other.trial_id).iterdir()] == ["weights"]
