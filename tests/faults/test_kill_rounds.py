"""Killing supervisors and workers at any moment loses no trial, repeats none and lets none overlap."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_rounds.py")


@pytest.mark.timeout(280)
def test_rounds_of_killing():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--rounds", "10"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    print(done.stdout)  # names the seed
    assert done.returncode == 0, done.stdout + done.stderr
    assert "faults=[]" in done.stdout
