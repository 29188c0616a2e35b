"""Kept weights score as the model did when they were kept, and belong to one trial on one base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from paribus.embedded import BASE
from paribus.errors import ModelError
from paribus.plan.trial import Heldout, Job, Training, Trial
from paribus.record.files import TEMPORARY
from paribus.sources.blocks import EmbeddedData, EmbeddedModel, PathModel
from paribus.sources.load import load_splits
from paribus.sources.models import locate
from paribus.techniques import Accumulation, BitFit, Fp32, Full, Lora, Noise
from paribus.techniques.tuning import weights
from paribus.train.kept import NOTE, Note, load_kept
from paribus.worker import perform as room
from paribus.worker.keep import Keeper
from paribus.worker.perform import Performed, perform
from paribus.worker.unchanged import content


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Keep the encoded examples of these tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARIBUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> PathModel:
    """A small model with biases, and the tokenizer of the embedded base."""
    folder = tmp_path_factory.mktemp("biased")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BASE / name, folder)
    vocabulary = json.loads((BASE / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    GPT2LMHeadModel(
        GPT2Config(vocab_size=vocabulary, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    ).save_pretrained(folder)
    return PathModel(path=folder)


def job(keep: Any = "all", model: Any = None, seed: int = 0, **chosen: Any) -> Job:
    """A trial of two epochs of two steps."""
    model = model or EmbeddedModel()
    data = EmbeddedData(train_examples=16, validation_examples=4, test_examples=4)
    axes = {"gradient_accumulation_steps": Accumulation(), "neftune_noise_alpha": Noise(), "tuning": Full()}
    trial = Trial(
        task="instruction",
        model=model,
        data=data,
        content=content(locate(model, Path()), load_splits(data, Path()), data),
        training=Training(effective_batch_size=8, epochs=2, learning_rate=2e-3, max_length=64),
        precision=Fp32(),
        seed=seed,
        **axes | chosen,
    )
    scores = (Heldout(train_sample=4),)
    return Job(trial_id=trial.trial_id, group=trial.group, trial=trial, scores=scores, keep=keep)


def done(given: Job, folder: Path) -> Performed:
    return perform(given, Path(), folder, lambda progress: None)


def scored(given: Job, model: Any, step: int) -> list[float]:
    (scorer,) = room.load(given, Path()).scorers.values()
    scorer.read(model, step, 2.0)
    return [reading.loss for reading in scorer.curve]


def at(performed: Performed, step: int) -> list[float]:
    return [reading.loss for reading in performed.scores[0].curve if reading.step == step]


@pytest.mark.parametrize("tuning", [Full(), Lora(r=4), BitFit()], ids=lambda tuning: tuning.kind)
def test_kept_weights_score_to_the_last_bit_as_they_did(tuning: Any, biased: Any, tmp_path: Path) -> None:
    given = job(model=biased, tuning=tuning)
    performed = done(given, tmp_path)
    for folder in ("last", "best"):
        note = Note.read(tmp_path / folder)
        with load_kept(given, tmp_path / folder) as model:
            assert not model.training
            assert scored(given, model, note.step) == at(performed, note.step)
            if folder == "last":
                assert performed.identity is not None
                names = weights.trainable(model)
                found = weights.combined(weights.digests(model), names)
                assert found == performed.identity.final_weights_sha256
    assert Note.read(tmp_path / "last").step == 4
    written = sum(path.stat().st_size for path in (tmp_path / "last").glob("*.safetensors"))
    assert performed.proof["tuning"]["saved_bytes"] == written


def test_weights_that_are_not_put_back_score_otherwise(
    biased: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = job(model=biased, tuning=BitFit())
    performed = done(given, tmp_path)
    monkeypatch.setattr(weights, "load", lambda *_: None)
    with load_kept(given, tmp_path / "last") as model:
        assert scored(given, model, 4) != at(performed, 4)


def test_the_size_is_measured_where_nothing_is_kept(tmp_path: Path) -> None:
    sizes = {
        kind: done(job("none", tuning=tuning), tmp_path).proof["tuning"]["saved_bytes"]
        for kind, tuning in {"small": Lora(r=2), "large": Lora(r=4)}.items()
    }
    assert list(tmp_path.iterdir()) == []
    assert 1.5 < sizes["large"] / sizes["small"] < 2.1


def test_a_wrong_base_tuning_or_trial_is_refused(biased: Any, tmp_path: Path) -> None:
    given = job("last", model=biased, tuning=Lora(r=4))
    done(given, tmp_path)
    with (
        pytest.raises(ModelError, match="of another tuning"),
        load_kept(job(model=biased, tuning=Lora(r=2)), tmp_path / "last"),
    ):
        pass
    with (
        pytest.raises(ModelError, match="of another base model"),
        load_kept(job(tuning=Lora(r=4)), tmp_path / "last"),
    ):
        pass
    with (
        pytest.raises(ModelError, match="of another trial"),
        load_kept(job(model=biased, tuning=Lora(r=4), seed=1), tmp_path / "last"),
    ):
        pass
    (tmp_path / "last" / NOTE).unlink()
    with pytest.raises(ModelError, match="no weights that paribus kept"), load_kept(given, tmp_path / "last"):
        pass


class Counting:
    """A model of which only the trained bytes are looked at."""

    def parameters(self) -> list[Any]:
        return []


@pytest.fixture
def tuner_that_writes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Full, "save", lambda self, model, folder: (folder / "a.safetensors").write_text("x"))


@pytest.mark.usefixtures("tuner_that_writes_little")
def test_the_best_is_kept_across_attempts_or_is_gone(tmp_path: Path) -> None:
    given, model = job("best"), Counting()
    first = Keeper(given, tmp_path, 9)
    first.offer(model, 3, 2.0)
    saved = first.state()
    first.offer(model, 6, 1.0)  # after the checkpoint; then the attempt dies
    again = Keeper(given, tmp_path, 9)
    again.restore(saved)
    again.offer(model, 6, 1.0)
    again.end(model, 9)
    assert Note.read(tmp_path / "best").step == 6
    assert again.warnings == []
    other = Keeper(given, tmp_path, 9)
    other.restore(saved)
    other.offer(model, 6, 2.5)  # it came out otherwise this time
    other.end(model, 9)
    assert not (tmp_path / "best").exists()
    assert "the best weights were kept at step 3" in other.warnings[0]


def test_a_writer_that_fails_leaves_the_older_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any, model: Any, folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError(28, "No space left on device")

    (tmp_path / "best").mkdir()
    (tmp_path / f"{TEMPORARY}left").mkdir()
    monkeypatch.setattr(Full, "save", fails)
    keeper = Keeper(job("best"), tmp_path, 9)
    with pytest.raises(OSError, match="No space"):
        keeper.offer(Counting(), 3, 1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    unkept = Keeper(job("none"), tmp_path, 9)
    unkept.end(Counting(), 9)
    assert unkept.saved_bytes is None
    assert "was not measured" in unkept.warnings[0]
