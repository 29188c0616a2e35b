"""Claims of the chapter on what a training holds and sends, whole and in shards."""

from __future__ import annotations

import pytest

from judging import failed, judged, numbers
from paribus.compare.recompute.sharding import Bytes, gathered, held, sent

VERDICTS = {
    "B01": "contradicted", "B02": "supported", "B18": "supported", "B19": "contradicted", "B20": "supported",
    "B22": "supported", "B24": "supported", "B52": "supported", "B56": "contradicted",
}  # fmt: skip


@pytest.mark.parametrize(("claim", "verdict"), VERDICTS.items())
def test_verdicts(claim: str, verdict: str) -> None:
    assert judged(claim).verdict == verdict, judged(claim).reason


def test_a_stage_holds_what_the_zero_paper_prints() -> None:
    """Figure 1: 7.5 billion parameters on 64 cards hold 120, 31.4, 16.6 and 1.9 GB."""
    found = [7.5 * held(stage, 64) for stage in range(4)]
    assert found == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)


def test_a_stage_sends_what_the_zero_paper_counts() -> None:
    """Section 7: twice the model but for stage 3, which sends it three times."""
    assert [sent(stage) for stage in range(4)] == [2, 2, 2, 3]


def test_b01_seven_billion_are_right_and_seventy_are_more_than_a_thousand_gigabytes() -> None:
    found = numbers("B01")
    assert found["state.7b"] == 112
    assert found["state.llama_2_7b"] == pytest.approx(6_738_415_616 * 16 / 1e9)
    assert found["state.70b.most"] == pytest.approx(1103.6, abs=0.05)
    assert failed("B01") == []


def test_b18_eight_copies() -> None:
    assert numbers("B18") == {"card": 112, "once": 112, "eight_cards": 896}


def test_b19_eight_times_is_the_figure_of_another_stage() -> None:
    found = numbers("B19")
    assert found["saved.zero1"] == pytest.approx(16 / 5.5)
    assert found["saved.zero1.many_cards"] == pytest.approx(4)
    assert held(0, 1) / held(2, 10**9) == pytest.approx(8)
    assert failed("B19") == ["ZeRO-2 sends a little more"]


@pytest.mark.parametrize(("layers", "cards"), [(1, 2), (3, 4), (5, 8)])
def test_b20_each_weight_is_gathered_twice_and_gradients_are_right(layers: int, cards: int) -> None:
    assert gathered(layers, cards) == {"forward": 1, "backward": 1, "same": True}


def test_b52_two_gigabytes_a_billion_parameters() -> None:
    assert numbers("B52") == {"card": 14, "card.moments_in_bf16": 7}
    assert held(3, 8, Bytes(optimizer=4)) == 1
