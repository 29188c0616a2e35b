"""Claims of the chapter on gradient checkpointing; each name begins with its id."""

from __future__ import annotations

import math

import pytest
import torch

from judging import failed, judged, numbers
from paribus.compare.recompute.checkpointing import TOKENS, _trained, growth, kept, more_operations
from paribus.compare.shapes import tiny_llama

WIDTH, FFN, LAYERS, VOCABULARY = 4096, 11008, 32, 32000


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [("B14", "supported"), ("B15", "contradicted"), ("B16", "supported"), ("B17", "supported")],
)
def test_verdicts(claim: str, verdict: str) -> None:
    assert judged(claim).verdict == verdict, judged(claim).reason


def test_b14_one_segment_is_left_alone_and_plain_data_train_it_only() -> None:
    assert numbers("B14") == {"segments": 8, "layers": 16, "layers_trained_from_plain_data": 2}


def test_b15_by_layer_inputs_alone_are_kept() -> None:
    boundary = TOKENS * WIDTH * 4
    assert kept(16, "layers") == 16 * boundary
    assert kept(64, "layers") == 64 * boundary


def test_b15_segments_keep_their_inputs_and_one_of_them_whole() -> None:
    layer, boundary = kept(1, "none"), TOKENS * WIDTH * 4
    assert kept(16, "none") == pytest.approx(16 * layer, rel=0.01)
    assert kept(16, "roots") == pytest.approx(3 * boundary + 4 * layer, rel=0.01)
    assert kept(64, "eight") == kept(64, "roots") == pytest.approx(7 * boundary + 8 * layer, rel=0.01)
    assert kept(16, "eight") == pytest.approx(7 * boundary + 2 * layer, rel=0.01)


def test_b15_the_root_belongs_to_neither_call_of_the_listing() -> None:
    assert growth("roots") == pytest.approx(0.5, abs=0.01)
    assert growth("layers") == 1
    assert 0.9 < growth("eight") < 1
    assert len(failed("B15")) == 2


def test_b16_a_whole_second_pass_is_a_third_of_the_layers_work_under_full_tuning() -> None:
    """Two operations a weight and token, forward; twice that backward; attention's products beside them."""
    products = 2 * TOKENS * (4 * WIDTH**2 + 3 * WIDTH * FFN)
    attention = 4 * TOKENS**2 * WIDTH
    layers, head = LAYERS * (products + attention), 2 * TOKENS * WIDTH * VOCABULARY
    by_hand = 100 * layers / (3 * (layers + head))
    assert more_operations("full", whole_pass=True) == pytest.approx(by_hand, abs=0.1)


def test_b16_an_early_end_leaves_the_last_product_of_a_layer_out() -> None:
    last = WIDTH * FFN / (4 * WIDTH**2 + 3 * WIDTH * FFN)
    whole, early = (more_operations("full", whole_pass=whole) for whole in (True, False))
    assert early == pytest.approx(whole * (1 - last), abs=0.3)
    assert more_operations("lora", whole_pass=True) == pytest.approx(1.5 * whole, abs=1)


def test_b17_the_weights_compared_have_moved() -> None:
    before, after = [p.detach() for p in tiny_llama().parameters()], _trained(2, True)
    moved = [float((one - other).abs().max()) for one, other in zip(before, after, strict=True)]
    assert min(moved) > 1e-3
    assert not any(math.isnan(one) for one in moved)
    assert all(torch.isfinite(one).all() for one in after)
