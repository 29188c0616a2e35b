"""One precision first, and another from some optimizer step on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting, Technique
from paribus.techniques.precision.fp8 import Fp8
from paribus.techniques.precision.half import Bf16, Fp16
from paribus.techniques.precision.integers import Int4, Int8, Nf4
from paribus.techniques.precision.level import Compute, Low
from paribus.techniques.precision.microscaling import Mxfp4, Mxfp6, Mxfp8, Nvfp4
from paribus.techniques.precision.plain import Fp32, Tf32

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Level = Annotated[
    Fp32 | Tf32 | Bf16 | Fp16 | Fp8 | Mxfp8 | Mxfp6 | Mxfp4 | Nvfp4 | Int8 | Int4 | Nf4,
    Field(discriminator="kind"),
]
PARTS: Final = ("first", "then")
STEPS: Final = "precision steps"


class Switched(Technique):
    """Train in one precision first and in another from a share `at` of the optimizer steps on.

    `first` and `then` are levels of this axis, as words or blocks; a word is computed as `compute` says. Only
    how products are rounded changes: the weights, the optimizer's state and the schedule go on. Emulated
    only. The article proposes fp16, then fp8 from half of the epochs on.
    """

    paper: ClassVar = ""

    kind: Literal["switched"] = "switched"
    first: Level
    then: Level
    at: float = Field(0.5, gt=0, lt=1)
    compute: Compute = "native"

    @model_validator(mode="before")
    @classmethod
    def _from_words(cls, value: Any) -> Any:
        """Turn words into blocks, computed as the whole is or as the other block is."""
        if not isinstance(value, dict) or not set(PARTS) <= value.keys():
            return value
        blocks = {
            name: {"kind": value[name]} if isinstance(value[name], str) else value[name] for name in PARTS
        }
        given = [found for block in blocks.values() if (found := _compute(block)) is not None]
        compute = value.get("compute") or next(iter(given), "native")
        for name, block in blocks.items():
            if isinstance(block, dict) and block.get("kind") != "fp32":
                blocks[name] = {"compute": compute, **block}
        return {**value, **blocks, "compute": compute}

    @model_validator(mode="after")
    def _agree(self) -> Switched:
        for name in PARTS:
            level = getattr(self, name)
            if isinstance(level, Low) and level.compute != self.compute:
                raise ValueError(
                    f"{name} is {level.compute} and the switch is {self.compute}: give all one compute"
                )
        if self.first.canonical() == self.then.canonical():
            raise ValueError("first and then are the same level, so nothing is switched: give two")
        return self

    @property
    def label(self) -> str:
        """Name this level in a table: both parts, and where it switches."""
        first, then = (getattr(self, name).label.replace(f" {self.compute}", "") for name in PARTS)
        compute = " emulated" if self.compute == "emulated" else ""
        return f"switched{compute} {first} then {then} at {self.at:g}"

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        if self.compute == "native":
            reason = "a native precision is one of the Trainer's for the whole run, so it cannot be switched"
            return Obstacle(reason, "set compute: emulated")
        found = (getattr(self, name).obstacle(machine, setting) for name in PARTS)
        return next((obstacle for obstacle in found if obstacle), None)

    def turns_at(self, live: Live) -> int:
        """Return the number of optimizer steps that the first part has."""
        return round(self.at * live.steps)

    def _now(self, live: Live) -> str:
        return PARTS[live.step >= self.turns_at(live)]

    def _each(self, live: Live) -> Iterator[tuple[Any, Live]]:
        for name in PARTS:
            yield getattr(self, name), _part(live, name)

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Install both, each of which acts in its own steps."""
        live.observed[STEPS] = Counter()
        with (
            _installed(self.first, model, _part(live, "first"), lambda: self._now(live) == "first") as one,
            _installed(self.then, one, _part(live, "then"), lambda: self._now(live) == "then") as both,
        ):
            yield both

    @contextmanager
    def as_trained(self, model: torch.nn.Module, live: Live) -> Iterator[None]:
        """Round as the step before did."""
        name = self._now(live)
        with getattr(self, name).as_trained(model, _part(live, name)):
            yield

    def before_step(self, model: torch.nn.Module, live: Live) -> bool:
        name = self._now(live)
        return getattr(self, name).before_step(model, _part(live, name))

    def after_step(self, model: torch.nn.Module, live: Live) -> None:
        name = self._now(live)
        live.observed[STEPS][name] += 1
        getattr(self, name).after_step(model, _part(live, name))

    def state(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        states = (level.state(model, part) for level, part in self._each(live))
        return dict(zip(PARTS, states, strict=True))

    def restore(self, model: torch.nn.Module, live: Live, state: dict[str, Any]) -> None:
        for name, (level, part) in zip(PARTS, self._each(live), strict=True):
            level.restore(model, part, state[name])

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the steps made in each part and the proof of each; NoEffect where one never ran."""
        steps: Counter[str] = live.observed[STEPS]
        for name in PARTS:
            if not steps[name]:
                reason = f"{name} ({getattr(self, name).label}) had none of {live.steps} optimizer steps"
                raise NoEffect(self.kind, reason, "move `at`, or train longer")
        proofs = (level.proof(model, part) for level, part in self._each(live))
        return {"compute": self.compute, "steps": {name: steps[name] for name in PARTS}} | dict(
            zip(PARTS, proofs, strict=True)
        )


def _compute(block: Any) -> str | None:
    return block.get("compute") if isinstance(block, dict) else getattr(block, "compute", None)


@contextmanager
def _installed(level: Any, model: Any, live: Live, active: Any) -> Iterator[Any]:
    context = level.emulated(model, live, active) if isinstance(level, Low) else level.applied(model, live)
    with context as changed:
        yield changed


def _part(live: Live, name: str) -> Any:
    """Return what the running step knows, with what one part observes under names of its own."""
    return _Part(live, name)


class _Part:
    """A `Live` whose `observed` stands in the whole one's, under other names."""

    def __init__(self, live: Live, name: str) -> None:
        self._live, self.observed = live, _Named(live.observed, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._live, name)


class _Named(MutableMapping[str, Any]):
    """The entries of a mapping whose keys begin with a word."""

    def __init__(self, whole: dict[str, Any], word: str) -> None:
        self.whole, self.word = whole, word

    def __getitem__(self, key: str) -> Any:
        return self.whole[f"{self.word} {key}"]

    def __setitem__(self, key: str, value: Any) -> None:
        self.whole[f"{self.word} {key}"] = value

    def __delitem__(self, key: str) -> None:
        del self.whole[f"{self.word} {key}"]

    def __iter__(self) -> Iterator[str]:
        begin = f"{self.word} "
        return (key.removeprefix(begin) for key in self.whole if key.startswith(begin))

    def __len__(self) -> int:
        return sum(1 for _ in self)
