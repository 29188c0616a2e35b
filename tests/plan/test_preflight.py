"""Obstacles: what cannot run here is known before anything starts."""

from __future__ import annotations

from studies import FACTS, plan, quickstart, short

from paribus.machine import GIB, Machine
from paribus.plan.preflight import obstacles
from paribus.record.result import Unsupported

CPU = Machine(name="a processor", memory_bytes=8 * GIB, cores=2)


def test_a_technique_that_cannot_run_is_an_outcome_of_every_repeat() -> None:
    planned = plan(quickstart())
    found = obstacles(planned, CPU)
    bitfit = next(cell for cell in planned.cells if cell.coordinates["tuning"] == "bitfit")
    assert set(found) == set(bitfit.trials.values())
    answer = found[bitfit.trials[0]]
    assert isinstance(answer, Unsupported)
    assert answer.technique == "bitfit" and "bias" in answer.reason and answer.way_out


def test_native_formats_need_a_device_and_the_way_out_is_emulation() -> None:
    planned = plan(short("vary: {precision: [fp32, bf16, fp16, fp8]}"))
    found = obstacles(planned, CPU)
    assert len(found) == 6
    assert all("emulated" in answer.way_out for answer in found.values())


def test_sequences_longer_than_the_model_reads_cannot_run() -> None:
    assert FACTS.context_length == 256
    text = short().replace("max_length: 128", "max_length: 512")
    answer = next(iter(obstacles(plan(text), CPU).values()))
    assert answer.reason == "training.max_length is 512 tokens and the model reads at most 256"
    fits = short().replace("max_length: 128", "max_length: 256")
    assert obstacles(plan(fits), CPU) == {}


def test_a_plan_as_json_lists_what_cannot_run_with_its_reason() -> None:
    planned = plan(quickstart())
    trials = planned.to_json(obstacles(planned, CPU))["trials"]
    assert len(trials) == 33
    blocked = [entry["unsupported"] for entry in trials if entry["unsupported"]]
    assert [sorted(entry) for entry in blocked] == [["reason", "technique", "way_out"]] * 3
