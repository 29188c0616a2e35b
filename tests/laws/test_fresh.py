"""Law: resumed in a fresh process, from inside an epoch or its end, a run ends where the whole run ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fresh import CASES, digest

import tiny
from laws import run, stopped

WANTED = [(0, "llama", 4), (0, "gpt2", 3), (1, "opt", 4), (2, "gemma", 4)]
"""Case, architecture, and the step of the checkpoint; an epoch has three steps."""


def test_a_fresh_process_ends_where_the_whole_run_ends(tmp_path: Path) -> None:
    for place, (number, model, every) in enumerate(WANTED):
        stopped(CASES[number], tiny.MODELS[model], every, tmp_path / str(place))
    (tmp_path / "wanted.json").write_text(json.dumps(WANTED), encoding="utf-8")
    command = [sys.executable, Path(__file__).with_name("fresh.py"), tmp_path]
    places = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, timeout=200, env=os.environ | places)
    whole = [digest(run(tiny.MODELS[model](), *CASES[number].techniques)) for number, model, _ in WANTED]
    assert json.loads((tmp_path / "found.json").read_text("utf-8")) == whole
