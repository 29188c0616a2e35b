"""Examples laid end to end train as padded ones do; where they would see each other it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, TrainerCallback

import tiny
from paribus.machine import host
from paribus.plan.preflight import obstacle
from paribus.plan.trial import Content, Trial
from paribus.sources.blocks import EmbeddedData, EmbeddedModel
from paribus.techniques import Accumulation, Dropout, Fp32, Full, Lora, NoEffect, Noise, Technique
from paribus.techniques.tuning.prompt import PromptTuning
from paribus.train.data import Encoded
from paribus.train.flattened import check_separate, flattened
from paribus.train.objective import NextToken
from paribus.train.session import train
from paribus.train.trainer import AblationTrainer

EXACT = [name for name in tiny.MODELS if name != "opt"]
gradients: list[torch.Tensor] = []


class Watched(AblationTrainer):
    """Keeps the gradient of the first optimizer step."""

    def __init__(self, *arguments: Any, **kwargs: Any) -> None:
        super().__init__(*arguments, **kwargs)
        self.add_callback(_Keep())


class _Keep(TrainerCallback):
    def on_pre_optimizer_step(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))


def pair(name: str, *techniques: Technique, steps: int = 2) -> tuple[tiny.Run, tiny.Run]:
    """Train padded and without padding in fp64 with plain SGD and no clipping; keep the gradients."""
    gradients.clear()
    padded, free = (
        tiny.run(
            tiny.MODELS[name](dtype=torch.float64),
            *techniques,
            max_steps=steps,
            optimizer="sgd",
            max_grad_norm=0,
            warmup_steps=0,
            trainer_class=Watched,
            padding_free=chosen,
        )
        for chosen in (False, True)
    )
    return padded, free


@pytest.mark.parametrize(
    "techniques",
    [
        (Full(),),
        (Lora(r=4), Noise(alpha=5), Dropout(p=0.1, where="hidden"), Accumulation(steps=2)),
    ],
    ids=["full", "lora-noise-dropout-accumulation"],
)
@pytest.mark.parametrize("name", EXACT)
def test_losses_gradients_and_weights_are_those_of_the_padded_run(name: str, techniques: Any) -> None:
    padded, free = pair(name, *techniques)
    assert free.losses == pytest.approx(padded.losses, rel=1e-7)
    half = len(gradients) // 2
    for one, other in zip(gradients[:half], gradients[half:], strict=True):
        assert (one - other).norm() / one.norm() < 1e-7  # the loss is summed in fp32
    assert tiny.distance(padded, free) < 1e-8
    assert free.trained.order_sha256 == padded.trained.order_sha256
    assert free.trained.counts == padded.trained.counts
    for one, other in zip(free.proofs[1:], padded.proofs[1:], strict=True):
        numbers = [{k: v for k, v in proof.items() if isinstance(v, float)} for proof in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-6)


class Leaking(NextToken):
    """A planted fault: positions that never start again, so that each token sees all before it."""

    def collate(self, rows: Any, pad_token_id: int) -> dict[str, torch.Tensor]:
        batch = flattened(rows)
        return batch | {"position_ids": torch.arange(batch["input_ids"].shape[1]).unsqueeze(0)}


class LeakingTrainer(AblationTrainer):
    def __init__(self, *arguments: Any, **kwargs: Any) -> None:
        super().__init__(*arguments, **kwargs | {"objective": Leaking(True)})


def test_the_law_catches_examples_that_see_each_other() -> None:
    exact, leaking = (
        tiny.run(tiny.llama(), Full(), max_steps=1, warmup_steps=0, padding_free=free, trainer_class=kind)
        for free, kind in ((False, AblationTrainer), (True, LeakingTrainer))
    )
    assert abs(exact.losses[0] - leaking.losses[0]) > 1e-3


def test_what_was_saved_and_that_examples_stay_apart_is_resolved() -> None:
    rows = tiny.rows(8)
    run = tiny.run(tiny.llama(), Full(), examples=rows, max_steps=2, padding_free=True)
    lengths = [len(row.input_ids) for row in rows]
    found = run.trained.resolved["padding_free"]
    assert found["padding_tokens_saved"] == 2 * (8 * max(lengths) - sum(lengths))
    assert found["logits_differ_by"] < 1e-5
    assert "padding_free" not in tiny.run(tiny.llama(), Full(), max_steps=2).trained.resolved


def test_rows_are_laid_end_to_end_and_a_first_token_is_no_target() -> None:
    rows = [
        Encoded("a", (4, 5, 6), (4, -100, 6), False, False),
        Encoded("b", (7, 8), (-100, 8), False, False),
    ]
    batch = NextToken(padding_free=True).collate(rows, 0)
    assert {name: value.tolist() for name, value in batch.items()} == {
        "input_ids": [[4, 5, 6, 7, 8]],
        "position_ids": [[0, 1, 2, 0, 1]],
        "labels": [[-100, -100, 6, -100, 8]],
    }
    padded = NextToken().collate(rows, 0)
    targets = NextToken().targets
    assert targets(batch["labels"]) == targets(padded["labels"]) == 2


def test_opt_would_mix_examples_and_is_refused() -> None:
    """Its mask is made without positions: an example's logits change by what lies before it."""
    with pytest.raises(
        NoEffect, match="does not keep examples in one row apart: the logits of one change by"
    ):
        tiny.run(tiny.MODELS["opt"](), Full(), padding_free=True)


def test_a_model_without_positions_is_refused() -> None:
    bloom = BloomForCausalLM(BloomConfig(**tiny.SHARED, hidden_size=32, n_layer=1, n_head=2))
    with pytest.raises(NoEffect, match="BloomForCausalLM takes no positions"):
        check_separate(bloom, tiny.rows(2))


def test_a_cache_would_mix_examples_and_is_found() -> None:
    """Transformers takes no segments from positions once there is a cache; the Trainer turns it off."""
    model = tiny.llama()
    with pytest.raises(NoEffect, match="keep examples in one row apart"):
        check_separate(model, tiny.rows(4))
    model.config.use_cache = False
    assert check_separate(model, tiny.rows(4)) < 1e-5


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_prompts_belong_to_a_row_and_not_to_a_segment(kind: str) -> None:
    import peft

    config = getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=4)
    wrapped = peft.get_peft_model(tiny.llama(), config)
    wrapped.get_base_model().config.use_cache = False
    with pytest.raises(NoEffect, match="keep examples in one row apart"):
        check_separate(wrapped, tiny.rows(4))


def test_an_objective_that_pads_cannot_be_told_otherwise(tmp_path: Any) -> None:
    from paribus.techniques import Live

    with pytest.raises(NoEffect, match="the objective NextToken pads its rows"):
        train(
            tiny.llama(),
            tiny.rows(),
            tiny.settings(padding_free=True),
            Live(seed=0, steps=8),
            techniques=(Full(),),
            pad_token_id=0,
            readers=(),
            listener=lambda *_: None,
            folder=tmp_path,
            objective=NextToken(),
        )


def test_planning_knows_of_opt() -> None:
    trial = Trial(
        task="instruction",
        model=EmbeddedModel(),
        data=EmbeddedData(),
        content=Content(model_sha256="0", train_sha256="0", template_sha256="0"),
        training=tiny.settings(padding_free=True, max_length=32),
        gradient_accumulation_steps=Accumulation(),
        neftune_noise_alpha=Noise(),
        precision=Fp32(),
        tuning=Full(),
        seed=0,
    )
    found = obstacle(trial, tiny.facts("opt"), host())
    assert found and found.technique == "padding_free" and "attention mask" in found.reason
    assert found.way_out == "set training.padding_free: false"
    assert all(obstacle(trial, tiny.facts(name), host()) is None for name in EXACT)
    prompted = obstacle(trial.model_copy(update={"tuning": PromptTuning()}), tiny.facts("llama"), host())
    assert prompted and "virtual tokens stand in front of a row" in prompted.reason


def test_a_padded_run_keeps_its_id() -> None:
    assert "padding_free" not in tiny.settings().canonical()
    assert tiny.settings(padding_free=True).canonical()["padding_free"] is True
