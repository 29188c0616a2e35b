"""Optimizers by name: what they really keep, what they leave behind, and what of their names is not so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import differing, go, stopped_and_resumed
from transformers import LlamaConfig, LlamaForCausalLM

import tiny
from paribus.plan.trial import Training
from paribus.techniques import (
    Accumulation,
    BitFit,
    Full,
    LayerCheckpointing,
    Lora,
    NoEffect,
    Noise,
    QLora,
    Technique,
)
from paribus.train import optimizers

BITSANDBYTES = ("adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit")
LARGE, ALL = 40_960, 55_616


def wide(dtype: torch.dtype = torch.float32) -> Any:
    """Width 64: ten matrices of 4,096 elements, beside an embedding, norms and smaller matrices."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**tiny.SHARED, **{**tiny.SHAPE, "hidden_size": 64})).to(dtype)


def kept(run: tiny.Run) -> dict[str, Any]:
    return {name: value for name, value in run.trained.resolved.items() if name.startswith("optimizer_")}


@pytest.fixture(scope="module")
def runs() -> dict[str, tiny.Run]:
    return {name: tiny.run(wide(), Full(), optimizer=name) for name in optimizers.OPTIMIZERS}


def test_the_result_says_what_each_optimizer_keeps(runs: dict[str, tiny.Run]) -> None:
    """AdamW keeps two moments; in 8 bits a byte each and a constant for 256; Adafactor rows and columns."""
    sizes = {name: kept(run)["optimizer_state_bytes"] for name, run in runs.items()}
    tensors = 21
    assert sizes["adamw"] == {"float32": 8 * ALL + 4 * tensors}  # and a count of steps
    assert sizes["sgd"] == {}
    assert sizes["paged_adamw_32bit"] == {"float32": 8 * ALL}
    tables, constants = 2 * 256 * 4, 2 * LARGE // 256 * 4
    assert sizes["adamw_8bit"] == {"float32": 8 * (ALL - LARGE) + constants + tables, "uint8": 2 * LARGE}
    assert sizes["paged_adamw_8bit"] == sizes["adamw_8bit"]
    assert sizes["adafactor"]["float32"] < 0.2 * ALL
    assert {run.trained.resolved["optimizer_elements"] for run in runs.values()} == {ALL}
    assert runs["adafactor"].trained.resolved["optimizer_class"] == "transformers.optimization.Adafactor"


def test_32_bits_are_adamw_and_8_bits_are_near_it(runs: dict[str, tiny.Run]) -> None:
    assert tiny.distance(runs["adamw"], runs["paged_adamw_32bit"]) < 1e-6
    assert 1e-6 < tiny.distance(runs["adamw"], runs["adamw_8bit"]) < 1e-3
    assert tiny.distance(runs["adamw_8bit"], runs["paged_adamw_8bit"]) == 0


def test_a_warning_names_what_is_not_in_8_bits(runs: dict[str, tiny.Run]) -> None:
    assert kept(runs["adamw_8bit"])["optimizer_elements_in_8_bit"] == LARGE
    (said,) = runs["adamw_8bit"].trained.warnings
    assert "40,960 of 55,616 elements" in said
    small = tiny.run(tiny.llama(), Lora(r=4), optimizer="adamw_8bit")
    assert kept(small)["optimizer_elements_in_8_bit"] == 0
    assert "none of 4,096 elements" in small.trained.warnings[0]
    assert runs["adamw"].trained.warnings == ()


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a CPU does")
def test_a_warning_says_that_a_cpu_pages_nothing(runs: dict[str, tiny.Run]) -> None:
    assert kept(runs["paged_adamw_32bit"])["optimizer_bytes_paged"] == 0
    (said,) = runs["paged_adamw_32bit"].trained.warnings
    assert "nothing is paged on a CPU" in said


def test_an_optimizer_remembers_nothing_of_the_one_before() -> None:
    """bitsandbytes notes by place which tensors stay in 32 bits; the embedding was first in the last run."""
    lora = Lora(r=64, target_modules=("q_proj", "o_proj"))
    first = tiny.run(wide(), lora, optimizer="adamw_8bit")
    assert kept(first)["optimizer_elements_in_8_bit"] == 8 * 4096
    tiny.run(wide(), Full(), optimizer="adamw_8bit")
    again = tiny.run(wide(), lora, optimizer="adamw_8bit")
    assert kept(again) == kept(first)
    assert tiny.distance(again, first) == 0


def test_left_to_itself_it_would_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    with optimizers.apart():
        monkeypatch.setattr(optimizers, "apart", nullcontext)
        tiny.run(wide(), Full(), optimizer="adamw_8bit")
        lora = Lora(r=64, target_modules=("q_proj", "o_proj"))
        again = tiny.run(wide(), lora, optimizer="adamw_8bit")
        monkeypatch.undo()
    assert kept(again)["optimizer_elements_in_8_bit"] < 8 * 4096


@pytest.mark.parametrize("name", [*BITSANDBYTES, "adafactor"])
def test_a_split_of_the_batch_does_not_matter(name: str) -> None:
    runs = [tiny.run(wide(torch.float64), Full(), Accumulation(steps=n), optimizer=name) for n in (1, 2)]
    assert tiny.distance(*runs) < 1e-8


@pytest.mark.parametrize("name", ["adamw_8bit", "paged_adamw_32bit", "adafactor"])
def test_resume_equals_whole(tmp_path: Path, name: str) -> None:
    given = {"model": wide, "optimizer": name, "epochs": None, "max_steps": 5}
    whole = go(tmp_path / "whole", **given)
    assert differing(stopped_and_resumed(tmp_path / "stopped", 3, **given), whole) == []


@pytest.mark.parametrize("quantisation", ["nf4", "int4"])
def test_resume_equals_whole_beside_a_quantised_base(tmp_path: Path, quantisation: Any) -> None:
    given: dict[str, Any] = {
        "techniques": (QLora(r=4, quantisation=quantisation), LayerCheckpointing(), Noise(alpha=5)),
        "optimizer": "paged_adamw_8bit",
        "epochs": None,
        "max_steps": 5,
    }
    whole = go(tmp_path / "whole", **given)
    assert differing(stopped_and_resumed(tmp_path / "stopped", 3, **given), whole) == []


def test_adams_settings_count_where_they_apply() -> None:
    for name in optimizers.OPTIMIZERS:
        one, other = (Training(epochs=1, optimizer=name, adam_beta2=beta).canonical() for beta in (0.9, 0.99))
        assert (one != other) == ("adamw" in name)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "paribus.plan.trial.find_spec", lambda name: None if name == "bitsandbytes" else found(name)
    )
    for name in BITSANDBYTES:
        with pytest.raises(NoEffect, match="needs bitsandbytes") as caught:
            tiny.run(tiny.llama(), Full(), optimizer=name)
        assert "pip install bitsandbytes" in caught.value.way_out
    assert Training(epochs=1, optimizer="adafactor").obstacle() is None


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_weight_decay_that_finds_nothing_to_decay_is_said(optimizer: str) -> None:
    def warned(tuning: Technique, decay: float) -> tuple[str, ...]:
        return tiny.run(tiny.gpt2(), tuning, optimizer=optimizer, weight_decay=decay).trained.warnings

    assert "weight_decay 0.5 changes nothing here" in warned(BitFit(), 0.5)[0]
    assert warned(Full(), 0.5) == warned(BitFit(), 0.0) == ()
