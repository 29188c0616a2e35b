"""Law: a split of the batch cannot matter, over the 160 steps of the contract.

The short form for every technique, and the planted faults, are in `test_laws` and `test_planted`.
"""

from __future__ import annotations

import pytest
import torch

import tiny
from paribus.techniques import Accumulation, Full, Lora, Noise

TUNINGS = {"full": Full(), "lora": Lora(r=4, lora_alpha=8)}


@pytest.mark.parametrize("alpha", [0, 5])
@pytest.mark.parametrize("tuning", TUNINGS)
def test_final_weights_agree_after_160_steps(tuning: str, alpha: float) -> None:
    whole, split = (
        tiny.run(
            tiny.llama(dtype=torch.float64),
            TUNINGS[tuning],
            Noise(alpha=alpha),
            Accumulation(steps=steps),
            max_steps=160,
        )
        for steps in (1, 2)
    )
    assert [set(run.live.micro_batches) for run in (whole, split)] == [{1}, {2}]
    assert tiny.distance(whole, split) < 1e-8
