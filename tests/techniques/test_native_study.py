"""The study that waits for a GPU names native levels, and plans as one on a machine that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from paribus.machine import GIB, Machine
from paribus.plan import preflight
from paribus.plan.design import expand
from paribus.plan.study import Study
from paribus.techniques.precision import torchao_fp8

STUDY = Path(__file__).parents[2] / "experiments" / "gpu_precision" / "study.yaml"
UNSUPPORTED = {"H200": {"mxfp8"}, "A100": {"mxfp8", "fp8"}, "B200": set[str]()}
CAPABILITY = {"H200": (9, 0), "A100": (8, 0), "B200": (10, 0)}


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Plan it on the model and data that ship with the package: the hub's are not at hand."""
    yaml = YAML()
    document = yaml.load(STUDY.read_text(encoding="utf-8"))
    document["model"], document["data"] = {"source": "embedded"}, {"source": "embedded"}
    document["training"]["max_length"] = 128
    document["compare"]["metric"] = "test.same_wording.loss"
    folder = tmp_path_factory.mktemp("gpu_precision")
    with (folder / "study.yaml").open("w") as file:
        yaml.dump(document, file)
    return expand(Study.read(folder))


@pytest.mark.parametrize("device", UNSUPPORTED)
def test_every_level_runs_natively_where_the_device_has_it(
    planned: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchao_fp8, "find_spec", lambda name: True)
    machine = Machine(
        device="cuda",
        name=f"NVIDIA {device}",
        memory_bytes=141 * GIB,
        cores=8,
        compute_capability=CAPABILITY[device],
    )
    blocked = preflight.obstacles(planned, machine)
    levels = [cell.coordinates["precision"] for cell in planned.cells]
    assert len(levels) == 9  # eight levels, and bf16 a second time with weights in bf16
    assert not any("emulated" in str(level) for level in levels)
    found = {
        str(cell.coordinates["precision"]).split()[0]
        for cell in planned.cells
        if any(trial in blocked for trial in cell.trials.values())
    }
    assert found == UNSUPPORTED[device]
