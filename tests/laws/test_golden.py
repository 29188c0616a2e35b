"""Law: a refactor moves no loss. Three small trials on the embedded base, against committed curves.

Where a change means to move them, say so in CHANGELOG.md and write them again:
`PARIBUS_GOLDEN=write pytest tests/laws/test_golden.py`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paribus.plan.trial import Heldout, Job, Training, Trial
from paribus.sources.blocks import EmbeddedData, EmbeddedModel
from paribus.sources.load import load_splits
from paribus.sources.models import locate
from paribus.techniques import Accumulation, Fp8, Fp32, Full, Lora, Noise
from paribus.worker.perform import perform
from paribus.worker.unchanged import content

FILE = Path(__file__).parent.parent / "golden" / "losses.json"
TRIALS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora noise accumulation": {
        "tuning": Lora(r=4, lora_alpha=8),
        "neftune_noise_alpha": Noise(alpha=5),
        "gradient_accumulation_steps": Accumulation(steps=4),
    },
    "fp8 emulated": {"precision": Fp8(compute="emulated")},
}
BEFORE = {"fp8 emulated": 5e-3}
AFTER = {"fp8 emulated": 0.25}
"""Relative, before the first update and after it. Another processor sums in another order, and 8 bits amplify
it: Adam's first step is nearly the sign of a gradient, and one that rounds to zero does not move. Between
two processors later losses were 15 % apart; what a product is, bit by bit, is in test_emulation.py.
"""


def losses(chosen: dict[str, Any], folder: Path) -> dict[str, list[float]]:
    """Return the training loss of eight steps and the test losses before and after."""
    axes = {
        "gradient_accumulation_steps": Accumulation(),
        "neftune_noise_alpha": Noise(),
        "precision": Fp32(),
        "tuning": Full(),
    }
    data = EmbeddedData(train_examples=32, validation_examples=8, test_examples=8)
    trial = Trial(
        task="instruction",
        model=EmbeddedModel(),
        data=data,
        content=content(locate(EmbeddedModel(), Path()), load_splits(data, Path()), data),
        training=Training(effective_batch_size=8, epochs=2, learning_rate=2e-3, max_length=64),
        seed=0,
        **axes | chosen,
    )
    job = Job(
        trial_id=trial.trial_id, group=trial.group, trial=trial, scores=(Heldout(every=8, train_sample=0),)
    )
    performed = perform(job, Path(), folder, lambda progress: None)
    return {
        "train": [row["loss"] for row in performed.steps],
        "test": [reading.loss for reading in performed.scores[0].curve if reading.split == "test"],
    }


@pytest.mark.parametrize("name", TRIALS)
def test_no_loss_moved(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARIBUS_CACHE", str(tmp_path / "cache"))
    found = losses(TRIALS[name], tmp_path)
    golden = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if os.environ.get("PARIBUS_GOLDEN") == "write":
        golden[name] = found
        FILE.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
    assert len(found["train"]) == 8
    assert all(after < before for before, after in zip(found["test"][:2], found["test"][2:], strict=True))
    for part, untrained in (("train", 1), ("test", 2)):
        values, expected = found[part], golden[name][part]
        assert values[:untrained] == pytest.approx(expected[:untrained], rel=BEFORE.get(name, 1e-4))
        assert values[untrained:] == pytest.approx(expected[untrained:], rel=AFTER.get(name, 1e-4))
