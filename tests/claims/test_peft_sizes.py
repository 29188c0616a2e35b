"""Claims of the chapter on what each way of tuning trains, stores and needs; each name begins with its id."""

from __future__ import annotations

import pytest

from judging import failed, judged, numbers

WIDTH, LAYERS, WHOLE = 4096, 32, 6_738_415_616
VERDICTS = {
    "B27": "contradicted", "B28": "not run", "B29": "supported", "B36": "supported", "B37": "supported",
    "B40": "contradicted", "B57": "contradicted",
}  # fmt: skip


@pytest.mark.parametrize(("claim", "verdict"), VERDICTS.items())
def test_verdicts(claim: str, verdict: str) -> None:
    assert judged(claim).verdict == verdict, judged(claim).reason


def test_b27_rank_16_on_attention_is_a_quarter_of_a_percent_and_not_a_tenth() -> None:
    found = numbers("B27")
    assert found["trained"] == 16_777_216
    assert found["share"] == pytest.approx(0.248, abs=5e-4)
    assert found["share.query_and_value"] == pytest.approx(0.124, abs=5e-4)


def test_b28_what_the_chapter_does_not_say_is_not_made_up() -> None:
    found = numbers("B28")
    assert found["lora.before_activations"] == pytest.approx((2 * WHOLE + 16 * 16_777_216) / 1e9)
    assert "does not name" in judged("B28").reason


def test_b29_an_adapter_of_sixteen_million_numbers() -> None:
    assert numbers("B29")["adapter.most"] == pytest.approx(4 * 16.777216)


def test_b36_the_bound_is_above_what_was_measured() -> None:
    """Traced with fake tensors, 2,048 tokens of Llama-2-7B under checkpointed QLoRA allocate 5.3 GiB."""
    assert 5.3 * 2**30 / 1e9 < numbers("B36")["needed"] < 24


def test_b37_is_understated() -> None:
    assert numbers("B37")["needed"] < 48 / 1.5
    assert numbers("B37")["parameters"] == pytest.approx(32.53, abs=0.01)


def test_b40_the_shares_of_the_table_on_llama_2_7b() -> None:
    """Low rank and adapters are in range; a prefix trains more, a prompt less, and there is no bias."""
    found = numbers("B40")
    everywhere = 16 * LAYERS * (4 * 2 * WIDTH + 3 * (WIDTH + 11008))
    houlsby = 2 * LAYERS * (2 * WIDTH * 256 + 256 + WIDTH)
    assert found["lora.most"] == pytest.approx(100 * everywhere / (WHOLE + everywhere))
    assert found["adapter.most"] == pytest.approx(100 * houlsby / (WHOLE + houlsby))
    assert found["prefix"] == pytest.approx(100 * 20 * 2 * LAYERS * WIDTH / WHOLE, rel=0.001)
    assert found["prompt"] == pytest.approx(100 * 20 * WIDTH / WHOLE, rel=0.001)
    assert found["bitfit"] == 0 < found["bitfit.opt_6.7b"]
    assert failed("B40") == ["prefix and prompt tuning train about the same share"]
