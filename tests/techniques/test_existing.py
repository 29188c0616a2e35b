"""Training goes on from a saved adapter: its content is the start and the identity, its path is neither."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from paribus.errors import ModelError, StudyError
from paribus.plan.design import expand
from paribus.plan.study import Study
from paribus.plan.trial import Job
from paribus.techniques import (
    AnyPeft,
    Existing,
    Ia3,
    LayerCheckpointing,
    Live,
    Lora,
    NoEffect,
    PrefixTuning,
    PromptTuning,
    PTuning,
    Vera,
)
from paribus.techniques.tuning.saved import content_sha256
from paribus.worker.unchanged import _otherwise

IDS = torch.arange(3, 15).unsqueeze(0)
METHODS = (
    Lora(r=4),
    Lora(r=4, use_dora=True),
    Ia3(),
    Vera(),
    AnyPeft(method="LoHaConfig"),
    AnyPeft(method="LNTuningConfig"),
    PromptTuning(),
    PrefixTuning(),
    PrefixTuning(prefix_projection=True),
    PTuning(encoder_hidden_size=6),
)
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits[:, -12:]


def saved(method: Any, folder: Path, model: Any = None) -> torch.Tensor:
    """Train a little under a method (by a fixed draw), save it and return its logits."""
    generator = torch.Generator().manual_seed(1)
    with method.applied(model or tiny.llama(), Live(seed=3)) as wrapped:
        with torch.no_grad():
            for parameter in wrapped.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        method.save(wrapped, folder)
        return logits(wrapped)


@every_method
def test_it_starts_at_the_stored_weights_and_moves(method: Any, tmp_path: Path) -> None:
    exact, plain = saved(method, tmp_path / "old"), logits(tiny.llama())
    assert not torch.allclose(exact, plain, atol=1e-5)
    tuning = Existing(path="old")
    live = Live(seed=0, folder=tmp_path)
    with tuning.applied(tiny.llama(), live) as model:
        assert torch.equal(logits(model), exact)
        trains = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trains, lr=0.1)
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
        proof = tuning.proof(model, live)
        moved = logits(model)
        tuning.save(model, tmp_path / "new")
    assert proof["started_from_sha256"] == content_sha256(tmp_path / "old")
    assert proof["tensors_moved"] > 0
    assert proof["trainable_parameters"] == sum(p.numel() for p in trains)
    assert not torch.equal(moved, exact)
    with tuning.applied(tiny.llama(), Live(seed=9, folder=tmp_path)) as model:
        tuning.load(model, tmp_path / "new")
        assert torch.equal(logits(model), moved)


def test_its_method_and_count_stand_in_the_proof_of_a_run(tmp_path: Path) -> None:
    saved(Lora(r=4), tmp_path)
    proof = tiny.run(tiny.llama(), Existing(path=str(tmp_path)), max_steps=3).proofs[0]
    assert proof["method"] == "LoraConfig"
    assert proof["tensors_loaded"] == proof["tensors_moved"] == 28
    assert proof["layers_adapted"] == 14


def test_another_seed_starts_at_the_same_weights_and_the_base_is_left_alone(tmp_path: Path) -> None:
    """The planted fault: fresh weights in the place of the stored ones start elsewhere."""
    exact, base = saved(Lora(r=4), tmp_path), tiny.llama()
    plain = logits(base)
    for seed in (0, 1):
        with Existing(path=str(tmp_path)).applied(base, Live(seed=seed)) as model:
            assert torch.equal(logits(model), exact)
    assert torch.equal(logits(base), plain)
    assert all(parameter.requires_grad for parameter in base.parameters())
    with Lora(r=4).applied(base, Live(seed=0)) as model:
        assert not torch.equal(logits(model), exact)


def test_merging_gives_the_adapters_logits(tmp_path: Path) -> None:
    exact, tuning = saved(Lora(r=4), tmp_path / "lora"), Existing(path="lora")
    with tuning.applied(tiny.llama(), Live(seed=0, folder=tmp_path)) as model:
        merged = tuning.merged(model)
        assert merged is not None
        assert (logits(merged) - exact).abs().max() < 1e-5
    saved(PromptTuning(), tmp_path / "prompt")
    with Existing(path="prompt").applied(tiny.llama(), Live(seed=0, folder=tmp_path)) as model:
        assert Existing(path="prompt").merged(model) is None


def test_a_foreign_adapter_is_told_before_training(tmp_path: Path) -> None:
    saved(Lora(r=4), tmp_path)
    for made, wrong in (
        (tiny.gemma, "is 16x4 in the adapter and 24x4 in this model"),
        (tiny.gpt2, "does not fit GPT2LMHeadModel"),
    ):
        with (
            pytest.raises(NoEffect, match=wrong) as caught,
            Existing(path=str(tmp_path)).applied(made(), Live(seed=0)),
        ):
            pass
        assert "does not fit" in caught.value.reason
        assert caught.value.way_out == "name an adapter that was trained on this model"


def test_computed_prompts_without_their_encoder_cannot_train(tmp_path: Path) -> None:
    saved(PTuning(), tmp_path)
    (tmp_path / "trained.safetensors").unlink()
    with (
        pytest.raises(NoEffect, match="without the encoder they come from"),
        Existing(path=str(tmp_path)).applied(tiny.llama(), Live(seed=0)),
    ):
        pass


def test_the_content_is_hashed_and_names_are_not(tmp_path: Path) -> None:
    saved(Lora(r=4), tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one = content_sha256(tmp_path / "one")
    change(tmp_path / "two", base_model_name_or_path="elsewhere", peft_version="9")
    assert content_sha256(tmp_path / "two") == one
    change(tmp_path / "two", lora_alpha=17)
    assert content_sha256(tmp_path / "two") != one
    saved(Lora(r=4), tmp_path / "three", tiny.llama(seed=1))
    assert content_sha256(tmp_path / "three") == one  # the same draws on another base
    saved(Lora(r=5), tmp_path / "four")
    assert content_sha256(tmp_path / "four") != one


def change(folder: Path, **entries: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"init_lora_weights": "pissa"}, "stands on a base that was changed"),
        ({"peft_type": "XLORA"}, "is of XLoraConfig, which mixes adapters"),
        ({"peft_type": "ADALORA"}, "must be told of every optimizer step"),
        ({"peft_type": None}, "does not say its peft_type"),
    ],
)
def test_an_adapter_that_cannot_be_trained_is_told_while_planning(
    entries: dict[str, Any], message: str, tmp_path: Path
) -> None:
    saved(Lora(r=4), tmp_path)
    change(tmp_path, **entries)
    with pytest.raises(ModelError, match=message):
        Existing(path=str(tmp_path)).content_sha256(Path())


STUDY = """\
paribus: 1
name: goes_on
model: {source: embedded}
data: {source: embedded}
training: {epochs: 1, max_length: 64}
repeat: {seeds: [0]}
compare: {metric: test.new_wording.loss}
tuning: full
vary:
  tuning:
    - full
    - {kind: existing, path: NAME}
"""


def planned(folder: Path, name: str) -> Job:
    (folder / "study.yaml").write_text(STUDY.replace("NAME", name))
    return next(job for job in expand(Study.read(folder)).jobs if job.trial.tuning.kind == "existing")


def test_a_trials_id_holds_the_content_and_not_the_path(tmp_path: Path) -> None:
    saved(Lora(r=4), tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one, two = planned(tmp_path, "one"), planned(tmp_path, "two")
    assert one.trial_id == two.trial_id
    assert one.trial.content.techniques == {"tuning": content_sha256(tmp_path / "one")}
    assert one.trial.canonical()["tuning"] == {"kind": "existing", "sha256": content_sha256(tmp_path / "one")}
    assert not list(_otherwise(one, tmp_path))
    change(tmp_path / "two", lora_alpha=17)
    assert planned(tmp_path, "two").trial_id != one.trial_id
    assert list(_otherwise(two, tmp_path)) == ["what tuning reads"]


def test_a_missing_adapter_is_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is missing") as caught:
        planned(tmp_path, "nowhere")
    assert not isinstance(caught.value, StudyError)
    assert caught.value.place is not None
    assert caught.value.place.line == STUDY[: STUDY.index("- {kind: existing")].count("\n") + 1


def test_weights_that_are_cut_short_are_told_while_planning(tmp_path: Path) -> None:
    saved(Lora(r=4), tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    for whole in (file.read_bytes(), b"", b"no tensors at all"):
        file.write_bytes(whole[:-7])
        with pytest.raises(ModelError, match=r"adapter_model\.safetensors is damaged") as caught:
            Existing(path=str(tmp_path)).content_sha256(Path())
        assert caught.value.place is not None


def test_a_method_that_peft_does_not_know_is_told(tmp_path: Path) -> None:
    saved(Lora(r=4), tmp_path)
    change(tmp_path, peft_type="NOPE")
    with (
        pytest.raises(NoEffect, match="the installed peft has no method 'NOPE'"),
        Existing(path=str(tmp_path)).applied(tiny.llama(), Live(seed=0)),
    ):
        pass


@pytest.mark.parametrize("projection", [False, True])
def test_a_prefix_and_checkpointing_exclude_each_other(projection: bool, tmp_path: Path) -> None:
    saved(PrefixTuning(prefix_projection=projection), tmp_path)
    with (
        Existing(path=str(tmp_path)).applied(tiny.llama(), Live(seed=0)) as model,
        pytest.raises(NoEffect, match="into the cache, which gradient checkpointing does not keep"),
        LayerCheckpointing().applied(model, Live(seed=0)),
    ):
        pass
