"""Claims of the chapter on long contexts; each name begins with its id."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from judging import failed, judged, numbers
from paribus.compare.recompute import rope
from paribus.compare.recompute.long_context import LONG, SHORT, _kept
from paribus.compare.recompute.sequence_parallel import CARDS, in_blocks, ring, ulysses, whole

VERDICTS = {
    "B43": "supported", "B44": "contradicted", "B46": "contradicted", "B47": "supported", "B48": "not run",
}  # fmt: skip
FACTOR = LONG / SHORT


@pytest.mark.parametrize(("claim", "verdict"), VERDICTS.items())
def test_verdicts(claim: str, verdict: str) -> None:
    assert judged(claim).verdict == verdict, judged(claim).reason


def test_b43_eager_attention_keeps_every_score_in_fp32_and_in_16_bits() -> None:
    """The second difference is twice what grows with the square: 32 heads of 4 and 2 bytes a score."""
    one, two, three = (_kept(n * 1024, "eager") for n in (1, 2, 3))
    assert (three - 2 * two + one) / 2 == 32 * 1024**2 * (4 + 2)


def test_b43_the_powers() -> None:
    found = numbers("B43")
    assert 1.9 < found["exponent"] < 2
    assert found["exponent.in_blocks"] == pytest.approx(1, abs=0.01)


def of_transformers(kind: str, factor: float, length: int | None = None) -> list[float]:
    """Return the frequencies that transformers gives Llama-2 under one of its kinds of RoPE."""
    chosen: dict[str, Any] = {"rope_type": kind, "rope_theta": rope.BASE, "factor": factor}
    if kind == "yarn":
        chosen["original_max_position_embeddings"] = SHORT
    config = LlamaConfig(max_position_embeddings=SHORT, rope_parameters=chosen)
    found, _ = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    return found.tolist()


def test_b44_the_formulas_are_those_of_transformers() -> None:
    assert rope.interpolated(FACTOR) == pytest.approx(of_transformers("linear", FACTOR), rel=1e-5)
    assert rope.ntk_aware(FACTOR) == pytest.approx(of_transformers("dynamic", 1.0, LONG), rel=1e-5)
    assert rope.yarn(FACTOR) == pytest.approx(of_transformers("yarn", FACTOR), rel=1e-5)


def test_b44_the_table_has_low_and_high_the_wrong_way_round() -> None:
    assert failed("B44") == ["it extrapolates low frequencies and interpolates high ones"]
    found = numbers("B44")
    assert (found["ntk.high"], found["ntk.low"]) == pytest.approx((1, FACTOR))


def heads() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(3, CARDS, 32, 8, generator=generator, dtype=torch.float64))


def test_attention_in_blocks_over_cards_and_whole_is_that_of_torch() -> None:
    q, k, v = heads()
    wanted = scaled_dot_product_attention(q, k, v)
    for found in (whole(q, k, v), in_blocks(q, [(k, v)]), ring(q, k, v)[0], ulysses(q, k, v)[0]):
        assert torch.allclose(found, wanted, atol=1e-12)


def test_a_lost_block_would_be_seen() -> None:
    q, k, v = heads()
    blocks = list(zip(k.chunk(4, 1), v.chunk(4, 1), strict=True))
    assert not torch.allclose(in_blocks(q, blocks[1:]), whole(q, k, v), atol=1e-3)


def test_b46_a_ring_sends_to_neighbours_and_an_all_to_all_to_all() -> None:
    q, k, v = heads()
    of_ring, of_all = ring(q, k, v)[1], ulysses(q, k, v)[1]
    assert len(of_ring) == (CARDS - 1) * CARDS * 2
    assert len(of_all) == CARDS * (CARDS - 1) * 4
    assert {(one.source, one.target) for one in of_all if one.what == "k"} == {
        (a, b) for a in range(CARDS) for b in range(CARDS) if a != b
    }
    assert failed("B46") == ["DeepSpeed-Ulysses passes keys and values round a ring"]


def test_b47_eight_cards_hold_an_eighth_each() -> None:
    assert numbers("B47")["times_less"] == pytest.approx(8)


def test_b48_the_exact_part_holds_and_the_hardware_is_not_guessed() -> None:
    assert failed("B48") == []
    assert "profiler" in judged("B48").reason
