"""A memory limit stands in for a smaller device: what fits, what does not, and what is tried again."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from paribus.machine import GIB, host
from paribus.plan.design import Plan, expand
from paribus.plan.reading import read_study
from paribus.record.result import TrialResult
from paribus.record.store import Store
from paribus.run.options import Options
from paribus.run.pending import pending
from paribus.run.supervisor import run
from paribus.techniques import NoEffect
from paribus.train.memory import out_of_memory
from paribus.worker import limit

STUDY = """\
paribus: 1
name: limited
model: {{source: embedded}}
data: {{source: embedded, train_examples: 64, validation_examples: 4, test_examples: 4}}
training: {{effective_batch_size: 64, epochs: 1, learning_rate: 1e-3, max_length: 128}}
gradient_accumulation_steps: {{micro_batch: auto}}
repeat: {{seeds: [0]}}
score: {{heldout: {{train_sample: 0}}}}
resources: {{memory_gib: {limit}}}
"""

pytestmark = pytest.mark.skipif(not limit.STATUS.exists(), reason="only Linux counts a process's data")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARIBUS_CACHE", str(tmp_path / "cache"))


def planned(folder: Path, gib: float | None) -> Plan:
    """Plan the one trial of the study under a limit."""
    path = folder / "study" / "study.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(STUDY.format(limit="null" if gib is None else gib))
    return expand(read_study(path.parent))


def ran(plan: Plan, store: Store, folder: Path) -> TrialResult:
    run(plan, store, host(), Options(max_workers=1, scratch=folder / "scratch"))
    result = store.result(plan.jobs[0].trial_id)
    assert result is not None
    return result


def test_less_memory_means_a_smaller_micro_batch_and_too_little_none(tmp_path: Path) -> None:
    """Real workers: the same trial under four limits, and each outcome is tried again under the next."""
    store = Store(tmp_path / "results")
    tiny, small, none = (planned(tmp_path, gib) for gib in (0.012, 0.06, None))
    assert tiny.jobs[0].trial_id == small.jobs[0].trial_id == none.jobs[0].trial_id

    full = ran(tiny, store, tmp_path)
    assert full.result.outcome == "out_of_memory"
    assert full.result.limit_bytes == round(0.012 * GIB)
    assert full.machine_class.endswith("limited to 0.012GiB/none")
    assert pending(tiny, store, host()) == []
    assert len(pending(small, store, host())) == 1

    fitted = ran(small, store, tmp_path)
    proof = fitted.proof["gradient_accumulation_steps"]
    assert fitted.result.outcome == "finished"
    assert 1 <= proof["micro_batch"] < 64
    assert proof["steps"] * proof["micro_batch"] == 64
    assert proof["attempts"][0]["size"] == 64
    assert [one["fitted"] for one in proof["attempts"]].count(True) == 1
    assert all(one["requested_bytes"] > 0 for one in proof["attempts"] if not one["fitted"])
    assert pending(none, store, host()) == []

    whole = ran(none, Store(tmp_path / "other"), tmp_path)
    assert whole.resolved["micro_batch"] == 64
    assert whole.proof["gradient_accumulation_steps"]["attempts"] == [{"size": 64, "fitted": True}]
    losses = [Store(tmp_path / name).steps(none.jobs[0].trial_id)["loss"][0] for name in ("results", "other")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_what_is_beyond_the_limit_fails_as_exhausted_memory_and_the_limit_ends() -> None:
    code = (
        "import torch, resource; from paribus.worker.limit import limited\n"
        "try:\n"
        "    with limited(0.1): torch.empty(2**28, dtype=torch.uint8)\n"
        "except RuntimeError as error: print(error)\n"
        "with limited(0.5): print(torch.empty(2**28, dtype=torch.uint8).numel())\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY)\n"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    words, size, ended = child.stdout.splitlines()[0], *child.stdout.splitlines()[-2:]
    full = out_of_memory(RuntimeError(words), "training")
    assert full is not None
    assert full.requested_bytes == 2**28
    assert (size, ended) == (str(2**28), "True")


def test_without_a_limit_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "setrlimit", None)
    with limit.limited(None):
        pass
    assert limit.limit_bytes(None) is None


def test_a_system_that_keeps_no_count_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "STATUS", tmp_path / "nowhere")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NoEffect, match="cannot limit"), limit.limited(1.0):
        pass


def test_on_a_gpu_the_limit_is_a_share_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    device: Any = type("Device", (), {"total_memory": 40 * GIB})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    with limit.limited(10):
        pass
    with limit.limited(80):
        pass
    assert shares == [0.25, 1, 1, 1]
