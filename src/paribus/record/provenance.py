"""Where a result comes from: versions, code, machine, thread settings; kept once, named by their hash."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from paribus.machine import Machine
from paribus.plan.trial import identity

LIBRARIES = (
    "paribus", "torch", "transformers", "tokenizers", "accelerate", "peft", "datasets", "safetensors",
    "numpy", "bitsandbytes", "pydantic", "pandas", "pyarrow", "gguf",
)  # fmt: skip

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG")


def provenance(machine: Machine, environment: Mapping[str, str]) -> dict[str, Any]:
    """Describe what a trial is run by, without a path, a name of a host or a secret in it.

    `environment` is a worker's; only what fixes its numerics is taken from it. `source_sha256` covers the
    Python files of the installed package, so that two results say whether the same code made them.
    """
    return {
        "libraries": {name: found for name in LIBRARIES if (found := installed(name))},
        "source_sha256": source_sha256(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": f"{platform.system()} {platform.machine()}",
        "machine": machine.model_dump(mode="json"),
        "threads": {name: environment[name] for name in THREADS if name in environment},
    }


def source_sha256() -> str:
    """Hash the package's own Python files, by relative name and content."""
    root = Path(__file__).parent.parent
    whole = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        whole.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes() + b"\0")
    return whole.hexdigest()


def host_key() -> str:
    """Name this running kernel: processes with the same key see each other's file locks."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():
        return identity(boot.read_text().strip())
    import psutil

    return identity([platform.node(), int(psutil.boot_time())])


def installed(name: str) -> str | None:
    """Return the installed version of a library; None where it is absent."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
