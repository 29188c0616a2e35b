"""What every technique is: closed settings, an obstacle, an application and a proof.

A technique is one frozen value. It says where it cannot run (`obstacle`, asked while planning, without
torch), which arguments of the Trainer it sets (`trainer_arguments`), what it does to a model (`applied`, a
context that leaves no trace when it ends, however it ends) and what can be read back from the live model
as evidence that it took effect (`proof`). Nothing else in the program names a technique.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paribus.machine import Machine

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class Settings(BaseModel):
    """A frozen, closed set of settings: no room for extras, none left undecided."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def canonical(self) -> dict[str, Any]:
        """Return what enters an identity: every field, less those equal to their `as_if_absent` value."""
        return {
            name: _canonical(getattr(self, name))
            for name, info in type(self).model_fields.items()
            if not _is_absent(getattr(self, name), info.json_schema_extra)
        }


def added_later(default: Any, *, as_if_absent: Any, **kwargs: Any) -> Any:
    """Declare a field added after identities were first given out: its old behaviour changes no identity."""
    return Field(default, json_schema_extra={"as_if_absent": as_if_absent}, **kwargs)


def _is_absent(value: Any, extra: Any) -> bool:
    if not isinstance(extra, dict) or "as_if_absent" not in extra:
        return False
    return _canonical(value) == _canonical(extra["as_if_absent"])


def _canonical(value: Any) -> Any:
    """Write a value in the one form that identities are made of."""
    if isinstance(value, Settings):
        return value.canonical()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, tuple | list):
        return [_canonical(item) for item in value]
    if isinstance(value, dict):
        return {unicodedata.normalize("NFC", str(key)): _canonical(item) for key, item in value.items()}
    return value


def _words(name: str, value: Any) -> str:
    """Write one setting: a word speaks for itself (`emulated`), a number needs its name (`r=4`)."""
    if isinstance(value, str):
        return value
    number = f"{value:g}" if isinstance(value, float) else value
    return f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else number}"


class Obstacle(NamedTuple):
    """Why a technique cannot run here, and what to do instead."""

    reason: str
    way_out: str


class ModelFacts(Settings):
    """What planning may know of a model without loading it; read from its files.

    `parameters` counts elements (tied weights once), `context_length` is in tokens,
    `bias_parameters` counts the elements of all parameters named `*.bias`.
    """

    architecture: str
    model_type: str
    parameters: int
    bias_parameters: int
    hidden_size: int
    layers: int
    vocabulary: int
    context_length: int | None = None
    chat_template: bool = True


@dataclass(frozen=True)
class Setting:
    """The view of a trial that a technique sees: the model's facts and what else was chosen, by axis name.

    `max_length` is the most tokens a row has; None where no trial is meant.
    """

    model: ModelFacts
    chosen: dict[str, Technique] = field(default_factory=dict)
    task: str = "instruction"
    max_length: int | None = None


OF_THIS_PROCESS: Final = {"of_this_process": True}
"""Metadata of a field of what a technique observes that means nothing in another process, such as an `id`."""


@dataclass
class Live:
    """What the running step knows, kept up to date by the trainer and read by the techniques.

    `steps` is the number of optimizer steps of the whole run, known before a technique is applied; `step`
    counts those done. `example_ids` and `lengths` (real tokens) describe the current micro-batch, row by row,
    `targets` is its number of targets, `step_targets` that of the `window` micro-batches of its optimizer
    step. `micro_batches` says how many optimizer steps took how many micro-batches. `optimizer` is torch's,
    once there is one, and `tokens_per_second` counts real tokens over all training, once it has ended.
    Relative paths of settings start at `folder`. A technique keeps what it measures while it is applied in
    `observed`, under its own name, for its proof. What stands there as a Counter, or as a dataclass of
    numbers, tensors, lists and mappings, is in every checkpoint; fields marked `OF_THIS_PROCESS` are not.
    """

    seed: int
    steps: int = 1
    folder: Path = Path()
    epoch: int = 0
    step: int = 0
    example_ids: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    targets: int = 0
    step_targets: int = 0
    window: int = 1
    micro_batches: Counter[int] = field(default_factory=Counter)
    optimizer: torch.optim.Optimizer | None = None
    tokens_per_second: float | None = None
    observed: dict[str, Any] = field(default_factory=dict)

    def draw_seed(self, role: str, *keys: object) -> int:
        """Derive the named sub-seed of one draw; it depends on neither the batch split nor the method."""
        return sub_seed(self.seed, role, *keys)


def sub_seed(seed: int, role: str, *keys: object) -> int:
    """Derive a 63-bit seed from a trial's seed, a role (init, order, noise, dropout...) and keys."""
    text = "|".join([str(seed), role, *map(str, keys)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class Technique(Settings):
    """One level of an axis. Subclasses add a `kind` literal and their settings."""

    shorthand: ClassVar[str | None] = None
    """The field that a bare number sets, where the axis takes one (`4` means `{steps: 4}`)."""
    paper: ClassVar[str] = ""
    """Where the technique was published."""

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, value: Any) -> Any:
        if cls.shorthand and isinstance(value, int | float) and not isinstance(value, bool):
            return {cls.shorthand: value}
        return value

    @property
    def label(self) -> str:
        """Name this level in a table: its kind, then each setting that is not the default."""
        changed = [
            _words(name, getattr(self, name))
            for name, info in type(self).model_fields.items()
            if name != "kind" and getattr(self, name) != info.default
        ]
        return " ".join([str(getattr(self, "kind", "")), *changed]).strip()

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        """Say why this cannot run on this machine and model, or None; asked while planning, without torch."""
        return None

    def trainer_arguments(self) -> dict[str, Any]:
        """Return the arguments of `transformers.TrainingArguments` that this technique sets."""
        return {}

    def content_sha256(self, folder: Path) -> str | None:
        """Return the hash of what this reads at its `path`, None where it reads nothing.

        It stands in a trial's id in the place of the path, which starts at `folder` where it is relative.
        Raises ModelError.
        """
        return None

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Change the model for the length of a training run and leave no trace afterwards."""
        yield model

    def as_trained(self, model: torch.nn.Module, live: Live) -> AbstractContextManager[None]:
        """Have the model compute as in training while it is scored, but for noise and dropout."""
        return nullcontext()

    def divisor(self, live: Live) -> float | None:
        """Return what divides the summed loss of the current micro-batch; None: the targets of its step."""
        return None

    def penalty(self, model: torch.nn.Module, live: Live) -> torch.Tensor | None:
        """Return what is added once to the loss of an optimizer step, or None."""
        return None

    def learning_rate_factors(self, model: torch.nn.Module) -> dict[str, float]:
        """Return, by name, the parameters whose learning rate is the study's times a factor."""
        return {}

    def before_step(self, model: torch.nn.Module, live: Live) -> bool:
        """Act before the gradients of an optimizer step are clipped; False leaves the step out.

        All techniques are asked. A step left out changes neither weights nor optimizer nor learning rate.
        """
        return True

    def after_step(self, model: torch.nn.Module, live: Live) -> None:
        """Act after an optimizer step that was not left out, while its gradients still stand."""

    def state(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return, by name, what this has gathered or changed since training began, for a checkpoint.

        Tensors, or values that JSON holds. The parameters that train, changed buffers, the optimizer, the own
        counts of `live` and global random states are saved anyway.
        """
        return {}

    def restore(self, model: torch.nn.Module, live: Live, state: dict[str, Any]) -> None:
        """Go on from what `state` returned, on a fresh model to which this is applied; tensors on the CPU."""

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return evidence, read back from the live model, that the technique took effect.

        Raises `NoEffect` where it did not: such a trial is Unsupported, never a silent baseline.
        """
        return {}


class NoEffect(Exception):
    """A technique was applied and changed nothing."""

    def __init__(self, technique: str, reason: str, way_out: str) -> None:
        super().__init__(f"{technique}: {reason}")
        self.technique, self.reason, self.way_out = technique, reason, way_out
