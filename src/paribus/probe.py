"""A child that answers, as JSON, what only torch knows; the answer is cached by versions and device.

`machine()` is what planning and running use. Where no accelerator is attached nothing is asked of torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from paribus.errors import ParibusError
from paribus.machine import Machine, host
from paribus.record.provenance import installed
from paribus.sources.cache import remembered


def machine() -> Machine:
    """Describe what trials would run on: the first accelerator where there is one, else the CPU."""
    if not _accelerator_attached():
        return host()
    devices = facts()["devices"]
    if not devices:
        return host()
    first = devices[0]
    return Machine(
        device="cuda",
        name=first["name"],
        memory_bytes=first["memory_bytes"],
        cores=host().cores,
        devices=len(devices),
        compute_capability=tuple(first["compute_capability"]),
    )


def facts() -> dict[str, Any]:
    """Return what torch says of this machine, from the cache where versions and devices are the same."""
    return remembered("probe", _key(), _ask)


def _accelerator_attached() -> bool:
    """Look for a device node; a container may have been given any of a host's devices, not only the first."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def _key() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = [installed("torch"), sys.version, host().model_dump(mode="json"), visible, _accelerator_attached()]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


def _ask() -> dict[str, Any]:
    child = subprocess.run(
        [sys.executable, "-m", "paribus.probe"], capture_output=True, text=True, timeout=300, check=False
    )
    if child.returncode != 0:
        last = child.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ParibusError(
            f"torch could not be asked about this machine: {last[0]}", way_out="Reinstall torch."
        )
    return json.loads(child.stdout)


def _answer() -> dict[str, Any]:
    """Ask torch; runs in the child."""
    import torch

    return {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda_built": torch.version.cuda,
        "devices": [_device(torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())],
        "dtypes": sorted(
            name for name in vars(torch) if isinstance(getattr(torch, name), torch.dtype) and "float" in name
        ),
    }


def _device(properties: Any) -> dict[str, Any]:
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "compute_capability": [properties.major, properties.minor],
    }


if __name__ == "__main__":
    print(json.dumps(_answer()))
