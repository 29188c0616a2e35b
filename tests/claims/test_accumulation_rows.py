"""Claims of the article on accumulation; each name begins with its id."""

from __future__ import annotations

import math

import pytest

import tiny
from judging import failed, judged, numbers
from paribus.compare.recompute.accumulation import steps_taken
from paribus.compare.recompute.batch_statistics import apart_by_norm
from paribus.techniques import Accumulation, Full


def test_a27_equal_counts_are_exact_and_a_language_model_has_unequal_ones() -> None:
    found = numbers("A27")
    assert found["relative_error.equal"] < 1e-14
    assert found["relative_error.unequal"] > 0.1
    assert len(failed("A27")) == 1


def test_a27_a_tiny_language_model_shows_the_same() -> None:
    """The trainer of paribus by tokens and as the article writes it, in one SGD-like first step of Adam."""
    whole, tokens, means = (
        tiny.run(tiny.llama(), Full(), rule, max_steps=4).losses[-1]
        for rule in (
            Accumulation(steps=1),
            Accumulation(steps=4),
            Accumulation(steps=4, normalise="micro_batches"),
        )
    )
    assert abs(tokens - whole) / whole < 1e-5 < abs(means - whole) / whole


def test_a28_unscaled_gradients_are_four_times_too_large() -> None:
    assert numbers("A28") == {"unscaled": 8, "scaled_loss": 0.5, "scaled": 2, "mean_of_batch": 2}
    assert judged("A28").verdict == "supported"


def test_a29_the_final_step_counts_what_is_left_by_k() -> None:
    """Two of four that are left count a quarter each: a gradient of half its size."""
    assert numbers("A29") == {"weight_of_each_in_the_final_step": 0.25, "weight_in_their_mean": 0.5}
    assert failed("A29") == [
        "the final step's gradient is the mean of what is left, as every other step's is"
    ]


def test_a30_without_a_final_step_leftovers_leak_into_the_next_epoch() -> None:
    taken = steps_taken(10, 4, 2, final=False)
    assert [[i for i, weight in enumerate(step) if weight] for step in taken] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [0, 1, 2, 3, 8, 9],
        [4, 5, 6, 7],
    ]
    assert numbers("A30") == {"micro_batches_in_the_third_step": 6, "size_of_the_third_step": 1.5}
    assert len(failed("A30")) == 2


def test_a30_batches_that_k_divides_leave_nothing() -> None:
    assert steps_taken(8, 4, 2, final=False) == steps_taken(8, 4, 2, final=True)


def test_a31_memory_is_met_and_neither_gradient_nor_curve_nor_batch_statistics_are() -> None:
    reason = judged("A31").reason
    assert judged("A31").verdict == "contradicted"
    assert len(failed("A31")) == 3
    assert "memory" not in reason


def test_a33_the_floor_of_a_quotient_is_right_where_it_divides() -> None:
    assert numbers("A33") == {"steps": 4}
    assert judged("A33").verdict == "supported"
    assert "24 samples" in judged("A33").reason


def test_a35_the_scaler_makes_the_step_of_the_whole_batch_by_an_old_name() -> None:
    assert judged("A35").verdict == "supported"
    assert "GradScaler(args...)` is deprecated" in judged("A35").reason


def test_a38_the_probe_holds_nothing_and_its_steps_end_at_none() -> None:
    found = numbers("A38")
    assert found["kept.under_no_grad"] == 0 < found["kept.in_training"]
    assert len(failed("A38")) == 3


def test_a39_the_floor_is_right_for_one_listing_and_wrong_for_the_other() -> None:
    found = numbers("A39")
    assert found == {"planned": 4, "steps.without_final": 4, "steps.with_final": 2 * math.ceil(10 / 4)}
    assert failed("A39") == [
        "(batches // k) x epochs are the optimizer steps of its trainer, which takes a final step"
    ]
    assert "to 0.5 of its peak" in judged("A39").reason  # (1 + cos(6 pi / 4)) / 2


def test_a39_the_trainer_here_counts_the_incomplete_step() -> None:
    run = tiny.run(
        tiny.llama(), Full(), Accumulation(steps=4), examples=tiny.rows(20), epochs=2, warmup_steps=0
    )
    rates = [row["learning_rate"] for row in run.trained.curve]
    assert rates == pytest.approx([1e-3 * (6 - step) / 6 for step in range(6)])


def test_a40_means_of_eight_vary_four_times_as_much() -> None:
    found = numbers("A40")
    assert (found["rows.whole"], found["rows.accumulated"]) == (32, 8)
    assert found["variance_of_mean.ratio"] == pytest.approx(4, rel=0.05)
    assert judged("A40").verdict == "supported"


def test_a41_layer_and_group_norm_do_not_care_for_the_split() -> None:
    assert apart_by_norm("layer") < 1e-14
    assert apart_by_norm("group") < 1e-14
    assert apart_by_norm("batch") > 0.1
    assert judged("A41").verdict == "supported"


def test_a43_adam_sees_the_accumulated_gradient_alone() -> None:
    found = numbers("A43")
    assert max(found["difference"], found["difference.unequal_targets_by_tokens"]) < 1e-10
    assert 0.1 < found["difference.unequal_targets"] < 1
    assert judged("A43").verdict == "supported"
