"""Claims of the article on NEFTune; the id of each is in the name."""

from __future__ import annotations

import math

import pytest
import torch

import tiny
from judging import failed, judged, numbers
from paribus.techniques import Accumulation, Full, Noise

ALPHA = 5.0


@pytest.mark.parametrize("claim", ["A45", "A90"])
def test_a45_a90_the_articles_noise_is_the_root_of_the_width_too_loud(claim: str) -> None:
    """A uniform number in [-1, 1] has the variance 1/3: the norms follow from the numbers of values."""
    found = numbers(claim)
    assert found["norm of the article's noise"] == pytest.approx(ALPHA * math.sqrt(4096 / 3), rel=2e-3)
    assert found["norm of the paper's noise"] == pytest.approx(ALPHA / math.sqrt(3), rel=2e-3)
    assert found["article over paper"] == pytest.approx(math.sqrt(4096), rel=1e-6)
    assert judged(claim).verdict == "contradicted"
    assert "the article's 5 is the paper's 320" in judged(claim).reason


def test_a45_transformers_has_the_papers_scale_and_the_draw_its_bounds() -> None:
    found = numbers("A45")
    assert found["norm of transformers' noise at width 64"] == pytest.approx(ALPHA / math.sqrt(3), rel=0.02)
    assert (found["uniform.low"], found["uniform.high"]) == pytest.approx((-1, 1), abs=1e-4)


def test_a46_the_width_is_listed_as_a_parameter_and_does_nothing_in_the_article() -> None:
    found = numbers("A46")
    assert found["spread at width 64 over width 1024, article"] == pytest.approx(1, rel=0.02)
    assert found["spread at width 64 over width 1024, paper"] == pytest.approx(math.sqrt(16), rel=0.02)
    assert judged("A46").verdict == "contradicted"


def test_a48_the_example_does_not_run_and_its_switch_is_not_the_models() -> None:
    assert failed("A48") == ["the example runs", "the model's eval() silences the wrapped embedding"]
    assert "vocab_size" in judged("A48").reason


def test_a49_a_replaced_forward_is_noisy_in_training_and_clean_in_evaluation() -> None:
    assert not failed("A49")
    assert judged("A49").verdict == "supported"


def test_a52_the_decay_is_negligible_in_the_length_of_a_fine_tuning() -> None:
    found = numbers("A52")
    assert found["alpha[1000]"] == pytest.approx(4.75)
    assert found["alpha[10000]"] == pytest.approx(2.99, abs=0.005)
    assert found["decay in 300 steps"] == pytest.approx(100 * (1 - 0.95**0.3), rel=1e-6)
    assert judged("A52").verdict == "contradicted"
    assert "original_forward" in judged("A52").reason


def test_a52_the_schedule_reaches_the_noise_of_a_training_run() -> None:
    run = tiny.run(tiny.llama(), Full(), Noise(alpha=ALPHA, schedule="article"))
    constant = tiny.run(tiny.llama(), Full(), Noise(alpha=ALPHA))
    assert run.proofs[1]["noise_rms"] == pytest.approx(constant.proofs[1]["noise_rms"], rel=1e-3)
    assert run.proofs[1]["noise_rms"] < constant.proofs[1]["noise_rms"]


def test_a54_no_memory_is_kept_and_the_time_is_not_computed() -> None:
    ruling = judged("A54")
    assert numbers("A54") == {"extra.memory": 0}
    assert ruling.verdict == "not run"
    assert ruling.reason.startswith("extra.time cannot be computed")


def test_a59_a_split_changes_the_noise_by_the_root_of_the_padded_lengths() -> None:
    """Padded to 64 tokens and then to its own 16: sqrt(64 / 16)."""
    found = numbers("A59")
    assert found["noise after the split over before, padded length"] == pytest.approx(2, rel=1e-6)
    assert found["noise after the split over before, own length"] == pytest.approx(1, rel=1e-6)
    assert judged("A59").verdict == "contradicted"


def final_difference(noise: Noise) -> float:
    """Return how far one and two micro-batches end apart in fp64, over the length of the way trained."""
    runs = [
        tiny.run(tiny.llama(dtype=torch.float64), Full(), noise, Accumulation(steps=steps), optimizer="sgd")
        for steps in (1, 2)
    ]
    start = dict(tiny.llama(dtype=torch.float64).named_parameters())
    way = max((runs[0].weights[name] - start[name]).abs().max().item() for name in runs[0].weights)
    return tiny.distance(*runs) / way


def test_a59_in_training_the_padded_length_parts_the_splits_and_the_own_does_not() -> None:
    assert final_difference(Noise(alpha=ALPHA, length="padded")) > 0.01
    assert final_difference(Noise(alpha=ALPHA)) < 1e-6
