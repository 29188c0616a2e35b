"""Claims of the article on NEFTune that arithmetic or a tiny model settles; the id of each is in the name."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tiny
from paribus.techniques import Accumulation, Full, Live, Noise

L, D, ALPHA = 512, 4096, 5.0


def norms(noise: Noise, length: int = L, width: int = D) -> float:
    """Return the Frobenius norm of the noise that one example of that size gets."""
    live = Live(seed=0, example_ids=("one",), lengths=(length,))
    return noise.draw(live, torch.zeros(1, length, width)).norm().item()


def test_a45_a90_the_articles_noise_is_the_root_of_the_width_too_loud() -> None:
    """Its alpha / sqrt(L) forgets d: at d = 4096 it is 64 times the paper's, alpha 5 counts as 320."""
    paper, article = norms(Noise(alpha=ALPHA)), norms(Noise(alpha=ALPHA, scaling="article"))
    assert paper == pytest.approx(ALPHA / math.sqrt(3), rel=2e-3)
    assert article == pytest.approx(ALPHA * math.sqrt(D / 3), rel=2e-3)
    assert article / paper == pytest.approx(64, rel=1e-6)


def test_a46_the_width_is_listed_as_a_parameter_and_does_nothing_in_the_article() -> None:
    """Its values spread alike at any width; in the paper it is the norm that is constant."""
    by_width = {width: norms(Noise(alpha=ALPHA, scaling="article"), 64, width) for width in (64, 256, 1024)}
    spread = [norm / math.sqrt(64 * width) for width, norm in by_width.items()]
    assert spread == pytest.approx([ALPHA / math.sqrt(3 * 64)] * 3, rel=0.02)
    paper = [norms(Noise(alpha=ALPHA), 64, width) for width in by_width]
    assert paper == pytest.approx([ALPHA / math.sqrt(3)] * 3, rel=0.02)


def test_a48_the_example_does_not_run_and_its_switch_is_not_the_models() -> None:
    with pytest.raises(TypeError, match="vocab_size"):
        torch.nn.Embedding(vocab_size=50, embedding_dim=8)  # type: ignore[call-arg]
    wrapper, model = torch.nn.Sequential(torch.nn.Embedding(50, 8)), torch.nn.Linear(8, 8)
    model.eval()
    assert wrapper.training


def test_a49_a_replaced_forward_is_noisy_in_training_and_clean_in_evaluation() -> None:
    model = tiny.llama()
    embedding = model.get_input_embeddings()
    original, ids = embedding.forward, torch.arange(3, 11).unsqueeze(0)

    def noisy(tokens: torch.Tensor) -> torch.Tensor:
        found = original(tokens)
        if model.training:
            found = found + torch.empty_like(found).uniform_(-1, 1) * ALPHA / found.shape[1] ** 0.5
        return found

    clean = model.eval()(ids).logits
    embedding.forward = noisy
    assert torch.equal(model.eval()(ids).logits, clean)
    model.train()
    assert not torch.equal(model(ids).logits, model(ids).logits)


def test_a52_the_decay_is_negligible_in_the_length_of_a_fine_tuning() -> None:
    left = {step: 0.95 ** (step / 1000) for step in (300, 1000, 10_000)}
    assert ALPHA * left[1000] == pytest.approx(4.75)
    assert ALPHA * left[10_000] == pytest.approx(2.99, abs=0.005)
    assert 1 - left[300] < 0.02
    run = tiny.run(tiny.llama(), Full(), Noise(alpha=ALPHA, schedule="article"))
    constant = tiny.run(tiny.llama(), Full(), Noise(alpha=ALPHA))
    assert run.proofs[1]["noise_rms"] == pytest.approx(constant.proofs[1]["noise_rms"], rel=1e-3)
    assert run.proofs[1]["noise_rms"] < constant.proofs[1]["noise_rms"]


def test_a52_the_listing_cannot_run_since_it_never_keeps_the_original_forward() -> None:
    class AsListed:
        def __init__(self, model: Any) -> None:
            self.model, self.alpha, self.decay_rate, self.step = model, ALPHA, 0.95, 0

        def neftune_forward(self, ids: torch.Tensor) -> Any:
            return self.original_forward(ids)  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="original_forward"):
        AsListed(tiny.llama()).neftune_forward(torch.ones(1, 1))


def final_difference(noise: Noise) -> float:
    """Return how far one and two micro-batches end apart in fp64, over the length of the way trained."""
    runs = [
        tiny.run(tiny.llama(dtype=torch.float64), Full(), noise, Accumulation(steps=steps), optimizer="sgd")
        for steps in (1, 2)
    ]
    start = dict(tiny.llama(dtype=torch.float64).named_parameters())
    way = max((runs[0].weights[name] - start[name]).abs().max().item() for name in runs[0].weights)
    return tiny.distance(*runs) / way


def test_a59_noise_and_accumulation_are_in_conflict_as_usually_written() -> None:
    """With L the padded length a split changes the noise; with the example's own length it cannot."""
    assert final_difference(Noise(alpha=ALPHA, length="padded")) > 0.01
    assert final_difference(Noise(alpha=ALPHA)) < 1e-6
