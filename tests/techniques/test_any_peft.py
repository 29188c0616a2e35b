"""Any config class of peft: checked against its signature, run, rerun, reloaded and merged."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

import tiny
from paribus.errors import StudyError
from paribus.machine import Machine
from paribus.plan.reading import parse_study
from paribus.techniques import Accumulation, AnyPeft, Live, NoEffect, Setting
from paribus.techniques.tuning.any_peft import NOT_MERGING, REFUSED
from paribus.techniques.tuning.peft_signatures import signatures

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
CPU = Machine(name="a CPU", memory_bytes=1, cores=1)
SIZES: dict[str, dict[str, Any]] = {
    "AdaptionPromptConfig": {"adapter_len": 4, "adapter_layers": 1},
    "C3AConfig": {"block_size": 16},
    "FourierFTConfig": {"n_frequency": 50},
    "MissConfig": {"r": 8},
    "OFTConfig": {"oft_block_size": 8, "r": 0},
    "OSFConfig": {"effective_rank": 8},
    "PsoftConfig": {"r": 8},
    "RandLoraConfig": {"r": 8},
    "RoadConfig": {"group_size": 16},
    "ShiraConfig": {"r": 4},
    "TrainableTokensConfig": {"token_indices": [3, 4, 5]},
    "UniLoraConfig": {"theta_d_length": 64},
    "VBLoRAConfig": {"num_vectors": 8, "vector_length": 16},
    "WaveFTConfig": {"n_frequency": 50},
}
"""What the defaults of peft, meant for wide models, do not fit."""
METHODS = sorted(signatures().keys() - REFUSED.keys())
IDS = torch.arange(3, 15).unsqueeze(0)
STUDY = """\
paribus: 1
name: any
model: {source: embedded}
data: {source: embedded}
training: {epochs: 1, max_length: 64}
repeat: {seeds: [0]}
compare: {metric: test.new_wording.loss}
tuning:
  kind: peft
"""


def tuning(method: str) -> AnyPeft:
    return AnyPeft(method=method, settings=SIZES.get(method, {}))


def test_signatures_are_those_of_the_installed_peft() -> None:
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    real = {one.__name__: one for one in PEFT_TYPE_TO_CONFIG_MAPPING.values()}
    assert signatures().keys() == real.keys()
    for name, one in real.items():
        assert signatures()[name].settings.keys() == inspect.signature(one).parameters.keys()
    assert REFUSED.keys() <= real.keys()
    assert len(METHODS) >= 30


def test_planning_imports_neither_torch_nor_peft() -> None:
    import subprocess

    code = (
        "import sys; from paribus.techniques import AnyPeft; AnyPeft(method='LoHaConfig', settings={'r': 4});"
        "print({'torch', 'peft', 'transformers'} & sys.modules.keys())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_reruns_and_leaves_no_trace(method: str) -> None:
    model = tiny.llama()
    exact = model.eval()(input_ids=IDS).logits
    one, again = (tiny.run(made, tuning(method), max_steps=2) for made in (model, tiny.llama()))
    assert one.losses == again.losses
    assert tiny.distance(one, again) == 0
    assert one.proofs[0]["tensors_moved"] > 0
    assert one.proofs[0]["config"].items() >= SIZES.get(method, {}).items()
    assert torch.equal(model.eval()(input_ids=IDS).logits, exact)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore:Merg")
def test_what_was_saved_and_what_is_merged_score_alike(method: str, tmp_path: Path) -> None:
    chosen = tuning(method)
    with chosen.applied(tiny.llama(), Live(seed=0)) as model:
        stirred(model)
        exact = model.eval()(input_ids=IDS).logits
        chosen.save(model, tmp_path)
    with chosen.applied(tiny.llama(), Live(seed=0)) as model:
        assert not torch.equal(model.eval()(input_ids=IDS).logits, exact)
        chosen.load(model, tmp_path)
        assert torch.equal(model(input_ids=IDS).logits, exact)
        merged = chosen.merged(model)
        assert (merged is None) == (method in {*NOT_MERGING, "TrainableTokensConfig"})  # the head is tied
        if merged is not None:
            assert not hasattr(merged, "peft_config")
            assert (merged(input_ids=IDS).logits - exact).abs().max() < 1e-5


def stirred(model: Any) -> None:
    """Move every trainable parameter by a fixed draw."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.03 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("method", ["LoHaConfig", "HRAConfig", "VBLoRAConfig", "LNTuningConfig"])
def test_splitting_a_batch_changes_nothing(method: str) -> None:
    whole, split = (
        tiny.run(tiny.llama(dtype=torch.float64), tuning(method), Accumulation(steps=steps), max_steps=3)
        for steps in (1, 4)
    )
    assert tiny.distance(whole, split) < 1e-10


def test_a_method_refused_for_its_batches_does_feel_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault of the law above, and the reason that stands in the refusal."""
    monkeypatch.delitem(REFUSED, "LilyConfig")
    chosen = AnyPeft(method="LilyConfig")
    whole, split = (
        tiny.run(tiny.llama(dtype=torch.float64), chosen, Accumulation(steps=steps), max_steps=3)
        for steps in (1, 4)
    )
    assert tiny.distance(whole, split) > 1e-6


def test_seeds_of_a_method_come_from_the_trial_unless_given() -> None:
    def projection(seed: int, **settings: Any) -> int:
        with AnyPeft(method="VeraConfig", settings=settings).applied(tiny.llama(), Live(seed=seed)) as model:
            return model.peft_config["default"].projection_prng_key

    assert projection(0) == projection(0) != projection(1)
    assert projection(0, projection_prng_key=7) == projection(1, projection_prng_key=7) == 7


@pytest.mark.parametrize(
    ("lines", "message", "way_out"),
    [
        ("  method: LoHaConfg", "peft has no config class 'LoHaConfg'", "Did you mean 'LoHaConfig'?"),
        ("  method: XLoraConfig", "XLoraConfig mixes adapters that were trained", "choose another"),
        ("  method: AdaLoraConfig", "must be told of every optimizer step", "tuning: adalora"),
        ("  method: LoHaConfig\n  settings:\n    r: four", "r of LoHaConfig cannot be 'four'", ""),
        ("  method: LoHaConfig\n  settings:\n    rr: 4", "LoHaConfig has no setting 'rr'", "Did you mean"),
        ("  method: LoHaConfig\n  settings:\n    rank_dropout: 0.1", "draws from the batch", "axis dropout"),
        ("  method: LoHaConfig\n  settings:\n    task_type: CAUSAL_LM", "not for a study", "take it out"),
        ("  method: LoraConfig\n  settings:\n    corda_config: {}", "needs activations", "take it out"),
        (
            "  method: LoraConfig\n  settings:\n    init_lora_weights: pissa",
            "init_lora_weights 'pissa' changes",
            "tuning: lora",
        ),
    ],
)
def test_a_study_hears_of_it_with_the_line(lines: str, message: str, way_out: str) -> None:
    with pytest.raises(StudyError) as caught:
        parse_study(STUDY + lines + "\n")
    assert message in caught.value.message
    assert way_out in (caught.value.way_out or "")
    assert caught.value.place is not None
    assert caught.value.place.line == (STUDY + lines).count("\n") + 1


def test_a_good_study_is_planned_and_settings_are_in_the_id() -> None:
    def tuned(text: str) -> Any:
        return parse_study(STUDY + text).tuning

    one = tuned("  method: LoHaConfig\n  settings: {r: 4, alpha: 8}\n")
    assert one.label == "LoHaConfig alpha=8 r=4"
    assert one.canonical() == tuned("  method: LoHaConfig\n  settings: {alpha: 8, r: 4}\n").canonical()
    assert one.canonical() != tuned("  method: LoHaConfig\n  settings: {r: 4}\n").canonical()


def test_what_a_method_cannot_do_with_a_model_is_an_obstacle_or_told_as_peft_tells_it() -> None:
    gpt2 = Setting(tiny.facts("gpt2"))
    found = AnyPeft(method="LoHaConfig").obstacle(CPU, gpt2)
    assert found is not None
    assert "GPT2LMHeadModel has Conv1D" in found.reason
    assert AnyPeft(method="HiraConfig").obstacle(CPU, gpt2) is None
    assert AnyPeft(method="AdaptionPromptConfig").obstacle(CPU, Setting(tiny.facts("opt"))) is not None
    with (
        pytest.raises(NoEffect, match="must be less than or equal to in_features") as caught,
        AnyPeft(method="MissConfig").applied(tiny.llama(), Live(seed=0)),
    ):
        pass
    assert caught.value.way_out == "change tuning.settings"


def test_a_value_is_checked_as_the_signature_says() -> None:
    assert AnyPeft(method="LoKrConfig", settings={"init_weights": "lycoris"})
    for settings in ({"init_weights": "lycori"}, {"r": 4.5}, {"target_modules": 3}):
        with pytest.raises(ValidationError, match="cannot be"):
            AnyPeft(method="LoKrConfig", settings=settings)


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("LoHaConfig", {"rank_pattern": {"q_prj": 2}}, r"rank_pattern keys did not match .*q_prj"),
        ("LoraConfig", {"alpha_pattern": {"q_prj": 2}}, r"alpha_pattern keys did not match .*q_prj"),
        ("LoHaConfig", {"exclude_modules": ["q_prj"]}, "no modules were excluded"),
        ("LoraConfig", {"target_parameters": ["x"]}, "no parameter was matched"),
        ("LoraConfig", {"bias": "all"}, "bias: all found no biases"),
        ("TrainableTokensConfig", {"token_indices": [10_000]}, "index 10000 is out of bounds"),
    ],
)
def test_a_setting_that_names_what_a_model_has_not_is_no_silent_baseline(
    method: str, settings: dict[str, Any], reason: str
) -> None:
    model = tiny.llama()
    before = {name: id(module) for name, module in model.named_modules()}
    with (
        pytest.raises(NoEffect, match=reason),
        AnyPeft(method=method, settings=settings).applied(model, Live(seed=0)),
    ):
        pass
    assert {name: id(module) for name, module in model.named_modules()} == before


def test_the_same_settings_take_effect_where_the_model_has_what_they_name() -> None:
    settings = {"exclude_modules": ["q_proj"], "rank_pattern": {"v_proj": 2}, "bias": "all"}
    with AnyPeft(method="LoraConfig", settings=settings).applied(tiny.qwen2(), Live(seed=0)) as model:
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    assert not [name for name in shapes if "q_proj.lora" in name]
    assert {shape[0] for name, shape in shapes.items() if "v_proj.lora_A" in name} == {2}
    assert [name for name in shapes if name.endswith("q_proj.bias")]
