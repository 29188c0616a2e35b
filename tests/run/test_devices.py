"""One worker a core or a device, and never a device that was not given."""

import pytest

from paribus.machine import Machine
from paribus.run.devices import slots, thread_environment, visible_devices

CPU = Machine(name="cpu", memory_bytes=2**34, cores=4)
GPU = Machine(device="cuda", name="gpu", memory_bytes=2**36, cores=16, devices=4, compute_capability=(9, 0))


def test_a_cpu_machine_runs_one_trial_a_core_and_shows_no_device():
    assert [slot.environment for slot in slots(CPU)] == [{"CUDA_VISIBLE_DEVICES": ""}] * 4
    assert len(slots(CPU, 2)) == 2
    assert len(slots(CPU, 7)) == 7


@pytest.mark.parametrize(
    ("inherited", "devices"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, ["2", "0"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-ab12, MIG-34"}, ["GPU-ab12", "MIG-34"]),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_devices_are_those_that_were_given(inherited, devices):
    assert visible_devices(GPU, inherited) == devices
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots(GPU, None, inherited)] == devices


def test_more_workers_than_devices_are_not_given_out():
    assert len(slots(GPU, 9, {})) == 4
    assert len(slots(GPU, 3, {})) == 3


def test_a_cpu_worker_computes_on_one_thread_and_gpu_workers_share_the_cores():
    assert thread_environment(CPU, 4)["OMP_NUM_THREADS"] == "1"
    assert thread_environment(GPU, 4)["OMP_NUM_THREADS"] == "4"
