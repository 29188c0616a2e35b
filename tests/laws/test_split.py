"""Law: a split of the batch cannot matter, with noise and without, for full tuning and LoRA."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import TrainerCallback

import tiny
from paribus.techniques import Accumulation, Full, Lora, Noise
from paribus.train.trainer import AblationTrainer

TUNINGS = {"full": Full(), "lora": Lora(r=4, lora_alpha=8)}


def final_difference(
    tuning: Any, noise: Noise, trainer_class: Any = AblationTrainer, steps: int = 160
) -> float:
    """Return the largest difference of final fp64 weights between one and two micro-batches."""
    runs = [
        tiny.run(
            tiny.llama(dtype=torch.float64),
            tuning,
            noise,
            Accumulation(steps=split),
            max_steps=steps,
            trainer_class=trainer_class,
        )
        for split in (1, 2)
    ]
    assert [set(run.live.micro_batches) for run in runs] == [{1}, {2}]
    return tiny.distance(*runs)


@pytest.mark.parametrize("alpha", [0, 5])
@pytest.mark.parametrize("tuning", TUNINGS)
def test_final_weights_agree_after_160_steps(tuning: str, alpha: float) -> None:
    assert final_difference(TUNINGS[tuning], Noise(alpha=alpha)) < 1e-8


class MeanOfMeans(AblationTrainer):
    """A planted fault: each micro-batch counts the same, however few targets it has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.compute_loss_func = self._mean

    def _mean(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits, targets = outputs.logits[:, :-1], labels[:, 1:]
        mean = cross_entropy(logits[targets != -100], targets[targets != -100])
        return mean / self.current_gradient_accumulation_steps


class ShapedNoise(Noise):
    """A planted fault: one draw for the whole padded batch, scaled by its padded length."""

    def draw(self, live: Any, embedded: torch.Tensor) -> torch.Tensor:
        _, length, width = embedded.shape
        generator = torch.Generator().manual_seed(live.step)
        unit = torch.rand(embedded.shape, generator=generator, dtype=embedded.dtype) * 2 - 1
        return unit * self.alpha / math.sqrt(length * width)


def test_the_law_catches_a_mean_of_means() -> None:
    assert final_difference(Full(), Noise(), MeanOfMeans, steps=4) > 1e-4


def test_the_law_catches_noise_that_is_drawn_by_batch() -> None:
    assert final_difference(Full(), ShapedNoise(alpha=5), steps=4) > 1e-4


class Watched(AblationTrainer):
    """Keeps the whole gradient of each optimizer step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gradients: list[torch.Tensor] = []
        found.append(self.gradients)
        self.add_callback(_Keep(self.gradients))


class _Keep(TrainerCallback):
    def __init__(self, gradients: list[torch.Tensor]) -> None:
        self.gradients = gradients

    def on_pre_optimizer_step(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        self.gradients.append(torch.cat(parts).clone())


found: list[list[torch.Tensor]] = []


@pytest.mark.parametrize("tuning", TUNINGS)
def test_each_fp32_gradient_agrees_from_equal_weights(tuning: str) -> None:
    """A learning rate too small to change an fp32 weight keeps the weights equal over eight steps."""
    found.clear()
    for split in (1, 2, 4, 8):
        tiny.run(
            tiny.llama(),
            TUNINGS[tuning],
            Noise(alpha=5),
            Accumulation(steps=split),
            optimizer="sgd",
            learning_rate=1e-30,
            max_grad_norm=0,
            trainer_class=Watched,
        )
    whole, *splits = found
    assert len(whole) == 8
    for gradients in splits:
        for one, other in zip(whole, gradients, strict=True):
            assert (one - other).norm() / one.norm() < 1e-6
