"""QLoRA: LoRA's own start beside a quantised base, exact reload, resume and split, what merging costs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from weight_space import IDS, fresh, logits, split_difference, start_of

import tiny
from paribus.machine import host
from paribus.techniques import (
    Bf16,
    Dropout,
    Fp8,
    Fp16,
    Fp32,
    LayerCheckpointing,
    Live,
    Lora,
    NoEffect,
    Noise,
    QLora,
    SequentialCheckpointing,
    Setting,
)
from paribus.techniques.tuning import quantised

FORMATS: dict[str, Any] = {
    "nf4": QLora(r=4),
    "fp4": QLora(r=4, quantisation="fp4", double_quantisation=False),
    "int8": QLora(r=4, quantisation="int8"),
    "int4": QLora(r=4, quantisation="int4", block_size=32),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[tiny.Run, dict[str, Any]]]:
    """Eight steps in every format on Llama and GPT-2, and what the trained model said in both modes."""
    found = {}
    for name in ("llama", "gpt2"):
        for kind, tuning in FORMATS.items():
            folder = tmp_path_factory.mktemp(kind)
            seen: dict[str, Any] = {"folder": folder}

            def before(model: Any, live: Live, seen: Any = seen) -> None:
                seen["start"] = logits(model)
                model.train()

            def after(model: Any, live: Live, tuning: Any = tuning, seen: Any = seen) -> None:
                seen["training"] = model.train()(input_ids=IDS).logits.detach()
                seen["end"] = logits(model)
                tuning.save(model, seen["folder"])

            run = tiny.run(tiny.MODELS[name](), tuning, before=before, after=after)
            found[name, kind] = run, seen
    return found


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_proof_of_the_live_model(runs: Any, name: str, kind: str) -> None:
    proof = runs[name, kind][0].proofs[0]
    layers = 14 if name == "llama" else 8
    (wanted,) = {"int8": ("Int8Linear",), "int4": ("Int4Linear",)}.get(kind, ("Float4Linear",))
    assert proof["layers_quantised"] == {wanted: layers}
    assert proof["layers_adapted"] == layers
    assert proof["total_parameters"] == proof["trainable_parameters"] + sum(
        p.numel() for p in tiny.MODELS[name]().parameters()
    )
    assert proof["bytes_of_codes"] == proof["weights_quantised"] // (1 if kind == "int8" else 2)
    bits = {"nf4": (4.12, 4.2), "fp4": (4.5, 4.5), "int4": (4.25, 4.4), "int8": (8.5, 9)}[kind]
    assert bits[0] <= proof["bits_per_weight"] <= bits[1]
    assert proof["mean_relative_error"] == pytest.approx(
        {"nf4": 0.091, "fp4": 0.122, "int4": 0.094, "int8": 0.0055}[kind], abs=0.003
    )
    assert proof["tensors_moved"] == 2 * layers


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_training_and_scoring_compute_the_same(runs: Any, name: str, kind: str) -> None:
    _, seen = runs[name, kind]
    assert torch.equal(seen["training"], seen["end"])
    assert not torch.equal(seen["start"], logits(tiny.MODELS[name]()))
    assert not torch.equal(seen["start"], seen["end"])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_reloading_is_exact_and_merging_is_into_decoded_weights(runs: Any, name: str, kind: str) -> None:
    _, seen = runs[name, kind]
    model = tiny.MODELS[name]()
    plain = {path: type(module) for path, module in model.named_modules()}
    with FORMATS[kind].applied(model, Live(seed=0, steps=8)) as again:
        FORMATS[kind].load(again, seen["folder"])
        assert torch.equal(logits(again), seen["end"])
        merged = FORMATS[kind].merged(again)
        assert (logits(merged) - seen["end"]).abs().max() < 1e-6
        assert {path: type(module) for path, module in merged.named_modules()} == plain
    assert {path: type(module) for path, module in model.named_modules()} == plain


def test_quantising_again_after_a_merge_undoes_a_good_part_of_a_short_training(tmp_path: Path) -> None:
    """peft merges so: decode, add the update, round to the grid again. A small update is lost in that."""
    tuning = QLora(r=4, double_quantisation=False)

    def after(model: Any, live: Live) -> None:
        found["end"] = logits(model)
        tuning.save(model, tmp_path)

    found: dict[str, Any] = {}
    run = tiny.run(tiny.llama(), tuning, after=after)
    with fresh("llama", tuning, run) as model:
        start = logits(model)
        tuning.load(model, tmp_path)
        merged: Any = tuning.merged(model)
        with quantised.quantised(merged, tuning._storage()):
            again = logits(merged)
    trained, lost = ((one - found["end"]).abs().max() for one in (start, again))
    assert trained > 1e-3
    assert lost > trained / 10


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_the_adapter_starts_where_loras_does(name: str) -> None:
    plain = start_of(Lora(r=4), tiny.MODELS[name]())
    for tuning in FORMATS.values():
        start = start_of(tuning, tiny.MODELS[name]())
        assert start.keys() == plain.keys()
        assert all(torch.equal(start[path], plain[path]) for path in plain)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_rerun_is_identical(runs: Any, kind: str) -> None:
    again = tiny.run(tiny.llama(), FORMATS[kind])
    assert again.trained.curve == runs["llama", kind][0].trained.curve
    assert tiny.distance(again, runs["llama", kind][0]) == 0


@pytest.mark.parametrize("kind", FORMATS)
def test_a_split_of_the_batch_does_not_matter(kind: str) -> None:
    assert split_difference("llama", FORMATS[kind]) < 1e-8


@pytest.mark.parametrize("kind", FORMATS)
def test_checkpointing_changes_nothing(kind: str) -> None:
    others = (Noise(alpha=5), Dropout(p=0.1))
    kept = tiny.run(tiny.llama(), FORMATS[kind], *others)
    for scheme in (LayerCheckpointing(use_reentrant=True), SequentialCheckpointing()):
        run = tiny.run(tiny.llama(), FORMATS[kind], scheme, *others)
        assert run.trained.curve == kept.trained.curve
        assert tiny.distance(run, kept) == 0


def test_loras_own_settings_hold_here_too() -> None:
    run = tiny.run(
        tiny.llama(),
        QLora(r=4, lora_dropout=0.1, use_rslora=True, init_lora_weights="both_random", loraplus_lr_ratio=4),
    )
    proof = run.proofs[0]
    assert proof["scaling"] == 8
    assert proof["inputs_dropped"] == pytest.approx(0.1, abs=0.02)
    plain = tiny.run(tiny.llama(), Lora(r=4, use_rslora=True, init_lora_weights="both_random")).proofs[0]
    assert proof["start_update_over_weight"] == pytest.approx(plain["start_update_over_weight"], rel=0.02)


def test_the_proof_catches_a_base_that_was_not_quantised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "is_linear", lambda module: False)
    with pytest.raises(NoEffect, match="no linear layer was quantised"):
        tiny.run(tiny.llama(), QLora(r=4))


@pytest.mark.parametrize("fault", [ValueError("planted"), KeyboardInterrupt()])
def test_a_failure_leaves_no_trace(fault: BaseException) -> None:
    model = tiny.gpt2()
    shape = str(model)
    base = logits(model)
    attributes = set(vars(model))
    with pytest.raises(type(fault)), QLora(r=4).applied(model, Live(seed=0)):
        raise fault
    assert (str(model), set(vars(model))) == (shape, attributes)
    assert torch.equal(logits(model), base)
    with (
        pytest.raises(NoEffect, match="no_such"),
        QLora(target_modules=("no_such",)).applied(model, Live(seed=0)),
    ):
        pass
    assert (str(model), set(vars(model))) == (shape, attributes)


@pytest.mark.parametrize(
    ("precision", "compute_dtype", "word"),
    [
        (Fp32(), "float32", None),
        (Fp32(), "bfloat16", None),
        (Bf16(compute="native"), "bfloat16", None),
        (Bf16(compute="native"), "float32", "compute_dtype: float32"),
        (Bf16(compute="emulated"), "bfloat16", "holds codes"),
        (Fp8(compute="emulated"), "float32", "holds codes"),
        (Fp16(compute="native"), "float32", "not in fp16"),
        (Fp8(compute="native"), "bfloat16", "not in fp8"),
    ],
)
def test_precisions_that_make_no_sense_are_refused(
    precision: Any, compute_dtype: Any, word: str | None
) -> None:
    setting = Setting(tiny.facts("llama"), {"precision": precision})
    found = QLora(compute_dtype=compute_dtype).obstacle(host(), setting)
    assert found is None if word is None else found is not None and word in found.reason


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paribus.techniques.tuning.qlora.find_spec", lambda name: None)
    setting = Setting(tiny.facts("llama"))
    for tuning in (QLora(), QLora(quantisation="int8"), QLora(quantisation="int4")):
        found = tuning.obstacle(host(), setting)
        assert found is not None
        assert "needs bitsandbytes" in found.reason
    assert QLora(quantisation="int4", double_quantisation=False).obstacle(host(), setting) is None


@pytest.mark.parametrize(
    "given",
    [
        {"quantisation": "int8", "block_size": 128},
        {"quantisation": "int8", "double_quantisation": False},
        {"use_dora": True},
        {"init_lora_weights": "pissa"},
        {"block_size": 48},
    ],
)
def test_settings_without_an_effect_are_errors(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        QLora(**given)


def test_what_says_nothing_is_in_no_identity() -> None:
    eight = QLora(quantisation="int8").canonical()
    assert not {"block_size", "double_quantisation"} & eight.keys()
    assert {"block_size", "double_quantisation"} <= QLora().canonical().keys()
    assert QLora.model_validate_json(QLora(quantisation="int8").model_dump_json()).canonical() == eight


def test_peft_takes_its_own_layers_for_a_quantised_base_also_on_a_cpu() -> None:
    expected = {"nf4": "Linear4bit", "fp4": "Linear4bit", "int8": "Linear8bitLt", "int4": "Linear"}
    for kind, tuning in FORMATS.items():
        with warnings.catch_warnings(), tuning.applied(tiny.llama(), Live(seed=0)) as model:
            found = {type(layer).__name__ for _, layer in quantised_adapters(model)}
        assert found == {expected[kind]}


def quantised_adapters(model: Any) -> list[tuple[str, Any]]:
    from paribus.techniques.tuning.peft_tuner import adapted

    return list(adapted(model))
