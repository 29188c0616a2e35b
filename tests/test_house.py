"""The structure keeps what it promises: directions, sizes, and planning without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:" + "|".join(["home", "root", "Users", "work"]) + r")/\w")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("name", ["cli.py", "plan/study.py", "train/trainer.py"])
def test_what_a_reader_opens_first_is_short(name: str) -> None:
    assert len((ROOT / "src/paribus" / name).read_text().splitlines()) <= 250


def test_planning_loads_neither_torch_nor_transformers() -> None:
    """The quickstart is planned in a fresh interpreter, and its record opened."""
    code = (
        "import sys, json, pathlib, paribus;"
        "plan = paribus.expand(paribus.Study.read('experiments/quickstart'));"
        "paribus.Store(pathlib.Path('nowhere')).results();"
        "import paribus.compare.report, paribus.run.supervisor;"
        "heavy = [m for m in ('torch', 'transformers', 'peft') if m in sys.modules];"
        "print(json.dumps([len(plan.jobs), heavy]))"
    )
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    trials, loaded = json.loads(child.stdout)
    assert trials == 33
    assert loaded == []


def test_imports_go_one_way() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    child = subprocess.run([str(lint)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout


def test_nothing_names_a_machine_path() -> None:
    """No source, study or committed result carries a path of the machine it was written on."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in {".safetensors", ".parquet", ".png"} or not path.exists():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        assert not MACHINE_PATH.search(text), name
