"""How much longer a trial takes where precision is emulated: its processor time over that of fp32.

`python benchmarks/emulation/cost.py [--rounds 3] [--epochs 8] [--only fp8]` trains the quickstart's base
cell in fp32 and at every level, in one process and on one thread, in rounds: a ratio is that of a level and
of fp32 in the same round, and what is written to `results.json` is the median over rounds. Where only some
levels are asked for, nothing is written.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import TypeAdapter

from paribus import Study, expand
from paribus.plan.trial import Job
from paribus.techniques import Precision, Technique
from paribus.worker.perform import perform

HERE = Path(__file__).parent
STUDY = HERE.parents[1] / "experiments" / "quickstart"
LIMIT = 2.5
"""Times the trial in fp32: what the levels under `LIMITED` may cost."""
LIMITED = ("bf16", "fp16", "fp8 tensor", "fp8 row")
LEVELS: dict[str, dict[str, Any]] = {
    "tf32": {"kind": "tf32"},
    "bf16": {"kind": "bf16"},
    "bf16, all around too": {"kind": "bf16", "outputs": True, "attention": True, "residual": True},
    "fp16": {"kind": "fp16"},
    "fp8 unscaled": {"kind": "fp8", "scaling": "none"},
    "fp8 tensor": {"kind": "fp8"},
    "fp8 row": {"kind": "fp8", "scaling": "row"},
    "fp8 block": {"kind": "fp8", "scaling": "block"},
    "fp8 delayed": {"kind": "fp8", "scaling": "delayed"},
    "fp8 calibrated": {"kind": "fp8", "scaling": "calibrated"},
    "fp8 rowwise": {"kind": "fp8", "recipe": "rowwise"},
    "fp8 rowwise_with_gw_hp": {"kind": "fp8", "recipe": "rowwise_with_gw_hp"},
    "fp8 deepseek": {"kind": "fp8", "recipe": "deepseek"},
    "mxfp8": {"kind": "mxfp8"},
    "mxfp6": {"kind": "mxfp6"},
    "mxfp4": {"kind": "mxfp4"},
    "nvfp4": {"kind": "nvfp4"},
    "int8": {"kind": "int8"},
    "int4": {"kind": "int4"},
    "nf4": {"kind": "nf4"},
}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--only", default="", help="how the names of levels begin; writes nothing")
    given = parser.parse_args()
    chosen = {name: block for name, block in LEVELS.items() if name.startswith(given.only)}
    base = next(job for job in expand(Study.read(STUDY)).jobs if job.trial.precision.kind == "fp32")
    seconds = rounds(base, chosen, given.rounds, given.epochs)
    rows = [row(name, seconds) for name in chosen]
    for found in rows:
        print(f"{found['level']:24} {found['trial']:5.2f} of the trial, {found['step']:5.2f} of a step")
    if not given.only:
        content = {"rounds": given.rounds, "epochs": given.epochs, **facts(), "rows": rows}
        (HERE / "results.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def rounds(
    base: Job, chosen: dict[str, dict[str, Any]], count: int, epochs: int
) -> list[dict[str, tuple[float, float]]]:
    """Return, round by round, the processor seconds of a trial and the median ones of its steps, by level."""
    levels: dict[str, Technique] = {"fp32": base.trial.precision}
    adapter = TypeAdapter(Precision)
    levels |= {
        name: adapter.validate_python({**block, "compute": "emulated"}) for name, block in chosen.items()
    }
    trained(base, levels["fp32"], 1)  # what is loaded once is loaded
    return [{name: trained(base, level, epochs) for name, level in levels.items()} for _ in range(count)]


def trained(base: Job, level: Technique, epochs: int) -> tuple[float, float]:
    """Run one trial and return its processor seconds and the median ones of its steps."""
    training = base.trial.training.model_copy(update={"epochs": epochs})
    trial = base.trial.model_copy(update={"precision": level, "training": training})
    times: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        began = time.process_time()
        done = perform(
            base.model_copy(update={"trial": trial}),
            STUDY,
            Path(scratch),
            lambda progress: times.append(time.process_time()),
        )
        whole = time.process_time() - began
    assert done.outcome.outcome == "finished", done.outcome
    return whole, median(after - before for before, after in pairwise(times[1:-1]))


def row(name: str, seconds: list[dict[str, tuple[float, float]]]) -> dict[str, Any]:
    """Return a level's ratios: medians over rounds, and the whole range."""
    trial = [one[name][0] / one["fp32"][0] for one in seconds]
    step = [one[name][1] / one["fp32"][1] for one in seconds]
    low, high = round(min(trial), 3), round(max(trial), 3)
    limit = LIMIT if name in LIMITED else None
    return {
        "level": name, "trial": round(median(trial), 3), "trial_range": [low, high],
        "step": round(median(step), 3), "limit": limit,
    }  # fmt: skip


def facts() -> dict[str, str]:
    """Say what it was measured on."""
    return {"torch": version("torch").partition("+")[0], "machine": platform.machine(), "threads": "1"}


if __name__ == "__main__":
    main()
