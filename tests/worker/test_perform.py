"""A trial from its job to its result: evidence, identities, outcomes, kept weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from paribus.embedded import BASE
from paribus.errors import DataError
from paribus.plan.trial import Heldout, Job, Training, Trial
from paribus.record.result import Finished, OutOfMemory, TrialResult
from paribus.sources.blocks import EmbeddedData, EmbeddedModel
from paribus.sources.load import load_splits
from paribus.sources.models import locate
from paribus.techniques import Accumulation, BitFit, Fp8, Fp32, Full, Lora, NoEffect, Noise
from paribus.worker import perform as room
from paribus.worker.perform import Performed, Progress, out_of_memory, perform
from paribus.worker.unchanged import content


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Keep the encoded examples of these tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARIBUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def job(scores: tuple[Heldout, ...] = (Heldout(train_sample=4),), keep: Any = "none", **chosen: Any) -> Job:
    """A trial of two epochs of two steps on the embedded base."""
    training = {"effective_batch_size": 8, "epochs": 2, "learning_rate": 2e-3, "max_length": 64}
    training |= {name: chosen.pop(name) for name in list(chosen) if name in Training.model_fields}
    axes = {
        "gradient_accumulation_steps": Accumulation(),
        "neftune_noise_alpha": Noise(),
        "precision": Fp32(),
        "tuning": Full(),
    }
    data = EmbeddedData(train_examples=16, validation_examples=6, test_examples=6)
    trial = Trial(
        task="instruction",
        model=EmbeddedModel(),
        data=data,
        content=content(locate(EmbeddedModel(), Path()), load_splits(data, Path()), data),
        training=Training(**training),
        seed=0,
        **axes | chosen,
    )
    return Job(trial_id=trial.trial_id, group=trial.group, trial=trial, scores=scores, keep=keep)


def done(given: Job, folder: Path) -> Performed:
    return perform(given, Path(), folder, lambda progress: None)


EVERYTHING = {
    "tuning": Lora(r=4),
    "precision": Fp8(compute="emulated"),
    "neftune_noise_alpha": Noise(alpha=5),
    "gradient_accumulation_steps": Accumulation(steps=4),
}


def test_a_trial_brings_its_evidence_and_fits_its_file(tmp_path: Path) -> None:
    seen: list[Progress] = []
    given = job(**EVERYTHING)
    performed = perform(given, Path(), tmp_path, seen.append)
    assert performed.outcome == Finished()
    assert [(p.phase, p.step, p.steps) for p in seen] == [
        ("loading", 0, 0),
        *(("training", step, 4) for step in range(1, 5)),
        ("done", 4, 4),
    ]
    assert set(performed.proof) == set(given.trial.techniques)
    assert performed.proof["tuning"]["layers_adapted"] == 21
    assert performed.proof["precision"]["modules_skipped"]["head"] == 1
    assert performed.proof["neftune_noise_alpha"]["examples"] == 32
    assert performed.proof["gradient_accumulation_steps"]["optimizer_steps_by_micro_batches"] == {"4": 4}
    assert performed.resolved["micro_batch"] == 2
    assert performed.resolved["effective_batch_size"] == 8
    assert performed.resolved["attention"] == "sdpa"
    assert performed.resolved["attention_kernel"] == "flash_attention_for_cpu"
    assert performed.resolved["architecture"] == "LlamaForCausalLM"
    assert [row["step"] for row in performed.steps] == [1, 2, 3, 4]
    assert performed.counts is not None
    assert performed.counts.examples == 32
    result = TrialResult(
        trial_id=given.trial_id,
        attempt=1,
        machine_class="x" * 80,
        provenance="x" * 16,
        result=performed.outcome,
        resolved=performed.resolved,
        counts=performed.counts,
        identity=performed.identity,
        cost=performed.cost,
        proof=performed.proof,
        warnings=performed.warnings,
    )
    assert len(json.dumps(result.model_dump(mode="json"), indent=1)) < 4096


def test_it_is_scored_at_the_base_after_each_epoch_and_each_setting_on_its_own(tmp_path: Path) -> None:
    scores = (Heldout(train_sample=4), Heldout(every=1, train_sample=0, groups=("new_wording",)))
    given = job(scores)
    performed = done(given, tmp_path)
    first, second = performed.scores
    assert [score.score_id for score in performed.scores] == [given.trial.score_id(s) for s in scores]
    assert {reading.step for reading in first.curve} == {0, 2, 4}
    assert {reading.step for reading in second.curve} == {0, 1, 2, 3, 4}
    assert {reading.group for reading in second.curve} == {"new_wording"}
    assert first.shared_prompts == {"same_wording": 0, "new_wording": 0}
    assert second.shared_prompts == {"new_wording": 0}
    base, last = (next(r for r in first.curve if (r.step, r.split) == (s, "train_sample")) for s in (0, 4))
    assert last.loss < base.loss
    assert (last.epoch, last.examples) == (2, 4)
    assert {row["step"] for row in performed.items[first.score_id]} >= {0, 4}
    assert len([row for row in performed.items[first.score_id] if row["step"] == 0]) == 4 + 4 * 6
    shared = {(r.step, r.split, r.group): r.loss for r in first.curve}
    for reading in second.curve:
        key = (reading.step, reading.split, reading.group)
        assert reading.loss == pytest.approx(shared.get(key, reading.loss), rel=1e-6)


def test_a_rerun_is_identical_and_so_is_one_that_is_scored_otherwise(tmp_path: Path) -> None:
    one, again = (done(job(**EVERYTHING), tmp_path) for _ in range(2))
    assert one.identity == again.identity
    assert one.scores == again.scores
    assert one.items == again.items
    other = done(job((), **EVERYTHING), tmp_path)
    assert other.identity == one.identity
    assert other.scores == ()


def test_arms_of_a_seed_share_order_and_start(tmp_path: Path) -> None:
    plain, noisy = (
        done(job(), tmp_path).identity,
        done(job(neftune_noise_alpha=Noise(alpha=5)), tmp_path).identity,
    )
    assert plain is not None
    assert noisy is not None
    assert plain.order_sha256 == noisy.order_sha256
    assert plain.initial_weights_sha256 == noisy.initial_weights_sha256
    assert plain.final_weights_sha256 != noisy.final_weights_sha256
    assert plain.loss_curve_sha256 != noisy.loss_curve_sha256


def test_a_technique_without_effect_is_unsupported(tmp_path: Path) -> None:
    outcome = done(job(tuning=BitFit()), tmp_path).outcome
    assert outcome.model_dump() == {
        "outcome": "unsupported",
        "technique": "bitfit",
        "reason": "LlamaForCausalLM has no biases to train",
        "way_out": "set tuning: lora, or use a model with biases (GPT-2, OPT, Pythia)",
    }
    wrong = done(job(tuning=Lora(target_modules=("q_prj",))), tmp_path).outcome
    assert wrong.outcome == "unsupported"
    assert "Did you mean 'q_proj'?" in wrong.way_out


def test_a_run_that_diverges_says_where_and_keeps_its_curve(tmp_path: Path) -> None:
    performed = done(job(optimizer="sgd", learning_rate=1e30, max_grad_norm=0), tmp_path)
    assert performed.outcome.outcome == "diverged"
    assert performed.outcome.quantity in ("loss", "grad_norm")
    assert performed.outcome.step == len(performed.steps)
    assert performed.identity is not None
    assert max(reading.step for reading in performed.scores[0].curve) < performed.outcome.step


def test_one_that_diverges_needs_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have ended before there was anything to show; a run that finished must show it."""

    def nothing(*_: Any) -> Any:
        raise NoEffect("full", "nothing to show", "train longer")

    monkeypatch.setattr(Full, "proof", nothing)
    diverged = done(job((), optimizer="sgd", learning_rate=1e30, max_grad_norm=0), tmp_path)
    assert diverged.outcome.outcome == "diverged"
    assert diverged.proof["tuning"] == {"none": "nothing to show"}
    assert done(job(()), tmp_path).outcome.outcome == "unsupported"


def test_memory_that_is_not_there_is_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*args: Any, **kwargs: Any) -> Any:
        return torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr(room, "train", hungry)
    outcome = done(job(), tmp_path).outcome
    assert outcome == OutOfMemory(phase="training", requested_bytes=2**60)


def test_out_of_memory_on_a_gpu_tells_what_was_asked_for() -> None:
    words = "CUDA out of memory. Tried to allocate 20.50 MiB. GPU 0 has a total capacity of 139 GiB"
    assert out_of_memory(torch.OutOfMemoryError(words), "scoring") == OutOfMemory(
        phase="scoring", requested_bytes=int(20.5 * 2**20), limit_bytes=_limit()
    )
    assert out_of_memory(MemoryError(), "loading") == OutOfMemory(phase="loading")
    assert out_of_memory(RuntimeError("shapes do not match"), "training") is None


def _limit() -> int | None:
    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None


def test_any_other_error_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(room, "train", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        done(job(), tmp_path)


@pytest.mark.parametrize(
    ("keep", "folders"),
    [
        ("none", set()),
        ("adapter", {"last"}),
        ("last", {"last"}),
        ("best", {"best"}),
        ("all", {"best", "last"}),
    ],
)
def test_what_is_kept_is_what_was_asked_for(tmp_path: Path, keep: str, folders: set[str]) -> None:
    done(job(keep=keep), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == folders
    for folder in folders:
        assert (tmp_path / folder / "model.safetensors").is_file()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_kept_weights_score_as_the_run_did(tmp_path: Path) -> None:
    given = job(keep="last", tuning=Lora(r=4))
    performed = done(given, tmp_path)
    assert {path.name for path in (tmp_path / "last").glob("*.safetensors")} == {"adapter_model.safetensors"}
    base = AutoModelForCausalLM.from_pretrained(BASE)
    kept = peft.PeftModel.from_pretrained(base, tmp_path / "last").eval()
    loaded = room.load(given, Path())
    (scorer,) = loaded.scorers.values()
    scorer.read(kept, 4, 2.0)
    last = [reading for reading in performed.scores[0].curve if reading.step == 4]
    for one, other in zip(scorer.curve, last, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-6)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("model_sha256", "the model"),
        ("train_sha256", "the training examples"),
        ("template_sha256", "the template"),
    ],
)
def test_what_changed_since_the_plan_is_not_trained_on(field: str, name: str, tmp_path: Path) -> None:
    given = job()
    other = given.trial.content.model_copy(update={field: "0" * 64})
    changed = given.model_copy(update={"trial": given.trial.model_copy(update={"content": other})})
    with pytest.raises(DataError, match=f"changed since the trial was planned: {name}"):
        done(changed, tmp_path)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_what_changed_since_the_plan_is_not_scored(split: str, tmp_path: Path) -> None:
    given = job((Heldout(groups=("same_wording",), **{f"{split}_sha256": "0" * 64}),))
    with pytest.raises(DataError, match=f"the {split} examples"):
        done(given, tmp_path)
