"""Checkpoints inside a trial: whole or absent, of this very training, the two newest of them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from safetensors import SafetensorError

from paribus.record.files import TEMPORARY, fault_point, fsync_folder
from paribus.record.provenance import installed

MANIFEST: Final = "checkpoint.json"
KEPT: Final = 2
"""How many stay: the newest, and the one before in case the newest cannot be read."""

LIBRARIES: Final = ("paribus", "torch", "transformers", "accelerate", "peft", "bitsandbytes", "safetensors")


class Stateful(Protocol):
    """Who gathers something along a training that a resumed one must go on from.

    A state is made of mappings, lists, numbers, words and tensors.
    """

    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass
class Checkpoints:
    """The checkpoints of one training, in a folder of its own, one every so many optimizer steps.

    `key` names what is trained and read: a checkpoint of another key is refused. `parts` are saved along with
    the training's own state. `warnings` says what was refused, `unwritten` what the disk did not take.
    """

    folder: Path
    every: int
    key: str
    parts: Mapping[str, Stateful] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    unwritten: list[str] = field(default_factory=list)

    def due(self, step: int, steps: int) -> bool:
        """Say whether to save after a step; after the last there is nothing to go on with."""
        return step % self.every == 0 and step < steps

    def newest(self, made_by: Mapping[str, Any], unfit: Callable[[Path], str | None]) -> Path | None:
        """Return the newest checkpoint that is whole and of this training; those refused are removed.

        `made_by` says how this training computes, `unfit` why a whole checkpoint does not fit the model.
        """
        for aside in self.folder.glob(f"{TEMPORARY}*"):
            shutil.rmtree(aside, ignore_errors=True)
        for path in reversed(self.standing()):
            reason = self._refusal(path, made_by) or unfit(path)
            if reason is None:
                return path
            self.warnings.append(f"the checkpoint at step {_step(path)} was not used: {reason}")
            shutil.rmtree(path, ignore_errors=True)
        return None

    def standing(self) -> list[Path]:
        """List the checkpoints that have their name, oldest first."""
        found = [path for path in self.folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
        return sorted(found, key=_step)

    def write(self, step: int, made_by: Mapping[str, Any], fill: Callable[[Path], None]) -> None:
        """Have a folder filled aside, seal it, give it its name and let the oldest go.

        A disk that refuses costs this checkpoint and no more: training goes on, and `unwritten` says so.
        """
        final = self.folder / f"step-{step:08d}"
        aside = self.folder / f"{TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}"
        try:
            aside.mkdir(parents=True)
            fill(aside)
            fault_point("before_seal", final)
            self._seal(aside, step, made_by)
            fault_point("before_rename", final)
            aside.rename(final)
            fsync_folder(self.folder)
        except (OSError, SafetensorError, RuntimeError) as error:
            if not _of_the_disk(error):
                raise
            self.unwritten.append(f"step {step}: {str(error).splitlines()[0]}")
            return
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        for old in self.standing()[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        fault_point("after_checkpoint", final)

    def _seal(self, folder: Path, step: int, made_by: Mapping[str, Any]) -> None:
        """Force what was written to disk and describe it, so that damage shows."""
        contents = {}
        for path in sorted(folder.iterdir()):
            contents[path.name] = _digest(path)
            with path.open("rb") as file:
                os.fsync(file.fileno())
        manifest = {"step": step, **self._origin(made_by), "contents": contents}
        with (folder / MANIFEST).open("x", encoding="utf-8") as file:
            file.write(json.dumps(manifest, indent=1))
            file.flush()
            os.fsync(file.fileno())
        fsync_folder(folder)

    def _origin(self, made_by: Mapping[str, Any]) -> dict[str, Any]:
        return {"key": self.key, "made_by": dict(made_by), "versions": versions()}

    def _refusal(self, path: Path, made_by: Mapping[str, Any]) -> str | None:
        """Say why a checkpoint cannot be used, or None."""
        try:
            found = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            origin = {name: found[name] for name in ("key", "made_by", "versions")}
            contents = {name: _digest(path / name) for name in found["contents"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"it is damaged ({type(error).__name__})"
        if contents != found["contents"]:
            return "it is damaged (its files are not what was written)"
        ours = self._origin(made_by)
        if origin["key"] != ours["key"]:
            return "it is of another trial, or of one that was read or kept otherwise"
        for words, name in (("computed on", "made_by"), ("made with", "versions")):
            if differing := _differing(origin[name], ours[name]):
                return f"it was {words} {differing}"
        return None


def versions() -> dict[str, str]:
    """Return the version of each library that shapes what a checkpoint holds."""
    return {name: installed(name) or "absent" for name in LIBRARIES}


def device_name(device: torch.device) -> str:
    """Name what computes: numbers of another device would not be those of this run."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _differing(then: Any, now: Mapping[str, Any]) -> str:
    """Name each thing that differs, with what it was and what it is."""
    if not isinstance(then, dict):
        return "something unknown"
    names = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    return ", ".join(f"{name} {then.get(name)}, now {now.get(name)}" for name in names)


def _of_the_disk(error: BaseException) -> bool:
    """Say whether an error is one of writing; torch and safetensors wrap theirs in words."""
    words = str(error)
    return (
        isinstance(error, OSError | SafetensorError) or "inline_container" in words or "StreamWriter" in words
    )
