"""The catalogue is read from the code: every technique, its settings, and where it runs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from paribus import catalogue
from paribus.cli import app
from paribus.errors import ParibusError
from paribus.machine import Machine
from paribus.plan import levels
from paribus.techniques import AXES

CPU = Machine(name="a CPU", memory_bytes=1, cores=1)
GPU = Machine(device="cuda", name="a GPU", memory_bytes=1, cores=1, compute_capability=(9, 0))
ENTRIES = catalogue.entries(CPU)


def test_every_technique_is_listed_once_with_every_setting() -> None:
    assert [entry.technique for entry in ENTRIES] == [one for chosen in AXES.values() for one in chosen]
    for entry in ENTRIES:
        listed = [setting["name"] for setting in entry.to_json()["settings"]]
        assert listed == [name for name in entry.technique.model_fields if name != "kind"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.axis}.{entry.name}")
def test_its_docstring_names_every_setting(entry: catalogue.Entry) -> None:
    document = entry.to_json()
    unexplained = {s["name"] for s in document["settings"]} - set(document["about"].replace("`", " ").split())
    short = {"r", "p", "alpha", "lora_alpha", "steps", "scaling", "recipe", "compute", "schedule"}
    words = " ".join(document["about"].split())
    assert not {name for name in unexplained - short if name not in words}


COMPLETE = [e for e in ENTRIES if not any(setting["required"] for setting in e.to_json()["settings"])]


@pytest.mark.parametrize("entry", COMPLETE, ids=lambda entry: f"{entry.axis}.{entry.name}")
def test_its_example_is_a_level_of_its_axis(entry: catalogue.Entry) -> None:
    from ruamel.yaml import YAML

    written = YAML(typ="safe").load(entry.example())
    assert isinstance(levels.parse(entry.axis, written[entry.axis], ()), entry.technique)


def test_a_format_is_emulated_on_a_cpu_and_native_on_a_gpu() -> None:
    runs = {
        machine.device: catalogue.named("bf16", catalogue.entries(machine))[0].runs for machine in (CPU, GPU)
    }
    assert runs == {"cpu": "emulated", "cuda": "native"}


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ParibusError, match="no technique 'lroa'") as caught:
        catalogue.named("lroa", ENTRIES)
    assert "Did you mean 'lora'?" in str(caught.value.way_out)
    assert [entry.name for entry in catalogue.named("Accumulation", ENTRIES)] == [
        "gradient_accumulation_steps"
    ]


def test_the_command_lists_and_explains() -> None:
    runner = CliRunner()
    whole, one = runner.invoke(app, ["techniques"]), runner.invoke(app, ["techniques", "lora"])
    assert whole.exit_code == one.exit_code == 0
    assert "bitfit trains biases only and LlamaForCausalLM has none" in " ".join(whole.stdout.split())
    assert "arXiv:2106.09685" in one.stdout
    listed = json.loads(runner.invoke(app, ["techniques", "tuning", "--json"]).stdout)
    assert {"full", "lora", "bitfit"} <= {entry["name"] for entry in listed}
