"""Go on from checkpoints in a process of its own: `python fresh.py FOLDER`, which holds `wanted.json`.

That lists the number of a case among `CASES`, the architecture and the interval of checkpoints; `found.json`
is written beside it, with a digest of what each run ended with.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from cases import Case

import tiny
from laws import run
from paribus.techniques import Accumulation, AdaLora, Dropout, Lora, Noise, PTuning
from paribus.train.checkpoint import Checkpoints
from paribus.train.reading import Reader

CASES = [
    Case(
        "lora with all that draws",
        {
            "tuning": Lora(r=4, lora_dropout=0.1),
            "neftune_noise_alpha": Noise(alpha=5),
            "dropout": Dropout(p=0.1, where="hidden"),
            "gradient_accumulation_steps": Accumulation(steps=2),
        },
    ),
    Case("adalora", {"tuning": AdaLora()}),
    Case("p_tuning", {"tuning": PTuning()}),
]


def digest(ended: tiny.Run) -> str:
    """Hash the curve, the order and the final weights of a run to their last bits."""
    content = hashlib.sha256(f"{ended.trained.curve_sha256}{ended.trained.order_sha256}".encode())
    for name, weight in sorted(ended.weights.items()):
        content.update(name.encode() + weight.contiguous().numpy().tobytes())
    return content.hexdigest()


def go_on(folder: Path, number: int, model: str, every: int) -> str:
    """Resume a run from a folder of checkpoints."""
    case = CASES[number]
    kept = Checkpoints(folder, every, key=case.name)
    readers = [Reader(5, lambda step, epoch: None)]
    ended = run(tiny.MODELS[model](), *case.techniques, readers=readers, checkpoints=kept)
    assert ended.trained.resolved["resumed"]["at_steps"] == [every], kept.warnings
    return digest(ended)


if __name__ == "__main__":
    base = Path(sys.argv[1])
    wanted = json.loads((base / "wanted.json").read_text("utf-8"))
    found = [go_on(base / str(place), *one) for place, one in enumerate(wanted)]
    (base / "found.json").write_text(json.dumps(found), encoding="utf-8")
