"""The laws: each measures by how much a case breaks it on a model, so that a limit can judge.

pytest, the planted faults and the full matrix share these functions. A law raises `Silent` where it says
nothing about a case; an error of any other kind is a failure.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import NULL, Case
from observing import (
    Drawing,
    Watched,
    apart,
    applied,
    changed_values,
    drawings,
    given,
    logits,
    row_loss,
    state,
    stir,
)
from pydantic import ValidationError

import tiny
from paribus.techniques import Live, Lora, Noise, Technique
from paribus.techniques.tuning.weights import digests
from paribus.train.checkpoint import Checkpoints
from paribus.train.reading import Reader

Maker = Callable[..., Any]
"""Makes an equal model each time; takes a dtype."""


class Silent(Exception):
    """A law says nothing about a case."""


@dataclass(frozen=True)
class Law:
    """A law: the size it measures, and the largest size that still keeps it."""

    measure: Callable[[Case, Maker, bool], float]
    limit: float
    says: str

    def __call__(self, case: Case, make: Maker, thorough: bool = False) -> float:
        return self.measure(case, make, thorough)


def run(model: Any, *techniques: Technique, **settings: Any) -> tiny.Run:
    """Train on 20 rows in steps of 8: an epoch has three steps and the last of them is short."""
    return tiny.run(model, *techniques, examples=tiny.rows(20), **settings)


def null(case: Case, make: Maker, thorough: bool) -> float:
    """Compare with null levels on the axes left open, with those that are there left out, and with twins."""
    first = run(make(), *case.techniques)
    others = {axis: level for axis, level in NULL.items() if axis not in case.cells}
    variants = [case.having(**others), case.without_null(), *twins(case)]
    return tiny.largest(apart(first, run(make(), *variant.techniques)) for variant in variants)


def twins(case: Case) -> Iterator[Case]:
    """Yield cases that differ in a word or a switch and not in their identity."""
    for axis, level in case.cells.items():
        for name, info in type(level).model_fields.items():
            options = getattr(info.annotation, "__args__", (True, False) if info.annotation is bool else ())
            for option in options:
                twin = _with(level, name, option)
                if twin is not None and twin != level and twin.canonical() == level.canonical():
                    yield case.having(**{axis: twin})


def _with(level: Technique, field: str, option: Any) -> Technique | None:
    try:
        return type(level).model_validate({**level.model_dump(), field: option})
    except ValidationError:
        return None


def split(case: Case, make: Maker, thorough: bool) -> float:
    """Return the largest difference of final fp64 weights between 1, 2 and 4 micro-batches a step."""
    steps = 160 if thorough else 12

    def final(pieces: int, steps: int) -> tiny.Run:
        model = make(dtype=torch.float64)
        return run(model, *case.split(pieces).techniques, max_steps=steps)

    long, short = final(1, steps), final(1, 12) if thorough else None
    found = tiny.distance(long, final(2, steps))
    return tiny.largest((found, tiny.distance(short or long, final(4, 12))))


def gradient(case: Case, make: Maker, thorough: bool) -> float:
    """Return the largest relative difference of an fp32 gradient between splits, from equal weights."""
    Watched.gradients.clear()
    for pieces in (1, 2, 8) if thorough else (1, 4):
        run(
            make(),
            *case.split(pieces).techniques,
            before=stir,
            proofs=False,
            optimizer="sgd",
            learning_rate=1e-30,
            max_grad_norm=0,
            max_steps=6,
            trainer_class=Watched,
        )
    whole, *others = Watched.gradients
    pairs = chain.from_iterable(zip(whole, other, strict=True) for other in others)
    return tiny.largest(float((one - other).norm() / one.norm()) for one, other in pairs)


def rerun(case: Case, make: Maker, thorough: bool) -> float:
    """Compare with a second run after others have trained and drawn."""
    first = run(make(), *case.techniques)
    run(tiny.llama(seed=5), Lora(r=2), Noise(alpha=3), seed=7, max_steps=2)
    torch.rand(17)
    return apart(first, run(make(), *case.techniques))


class Broken(RuntimeError):
    """What stops the training under test."""


def resume(case: Case, make: Maker, thorough: bool) -> float:
    """Compare a whole run with runs that go on from a checkpoint after they were stopped.

    Stopped inside the second epoch, after a checkpoint at its start or inside it.
    """
    whole = run(make(), *case.techniques)
    every = (3, 4) if thorough else (4,)
    return tiny.largest(apart(whole, resumed(case, make, one)) for one in every)


def resumed(case: Case, make: Maker, every: int) -> tiny.Run:
    """Stop after five steps and go on from the newest checkpoint with a model made anew."""
    with tempfile.TemporaryDirectory() as folder:
        stopped(case, make, every, Path(folder))
        again = Checkpoints(Path(folder), every, key=case.name)
        reader = Reader(5, lambda step, epoch: None)
        ended = run(make(), *case.techniques, readers=[reader], checkpoints=again)
    assert ended.trained.resolved["resumed"]["at_steps"] == [every], again.warnings
    return ended


def stopped(case: Case, make: Maker, every: int, folder: Path) -> None:
    """Leave the checkpoints of a training that was stopped after five steps."""

    def fail(step: int, epoch: float) -> None:
        if step == 5:
            raise Broken

    with pytest.raises(Broken):
        kept = Checkpoints(folder, every, key=case.name)
        run(make(), *case.techniques, readers=[Reader(5, fail)], checkpoints=kept)


def trace(case: Case, make: Maker, thorough: bool) -> float:
    """Count what is left on a model, and which frozen weights differ, after training under it failed."""
    model = make()
    before, values, trained = state(model), digests(model), set[int]()

    def fail(step: int, epoch: float) -> None:
        if step == 2:
            raise Broken

    def note(wrapped: Any, live: Live) -> None:
        trained.update(id(p) for p in wrapped.parameters() if p.requires_grad)

    with pytest.raises(Broken):
        run(model, *case.techniques, readers=[Reader(1, fail)], before=note)
    after = state(model)
    left = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    return float(len(left) + len(changed_values(model, values, trained)))


def reload(case: Case, make: Maker, thorough: bool) -> float:
    """Return the largest difference of logits after saving, and loading beside a fresh base.

    The trial that loads has another seed: what was saved is whole.
    """
    found: list[torch.Tensor] = []
    with tempfile.TemporaryDirectory() as folder:

        def keep(model: Any, live: Live) -> None:
            case.tuner.save(model, Path(folder))
            found.append(logits(model, live))

        run(make(), *case.techniques, after=keep)
        live = Live(seed=1, steps=8)
        with applied(case, make(), live) as model:
            case.tuner.load(model, Path(folder))
            return difference(logits(model, live), found[0])


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return 0 for equal bits, else the largest difference (at least 1e-300)."""
    return 0.0 if torch.equal(one, other) else tiny.largest((1e-300, float((one - other).abs().max())))


def merge(case: Case, make: Maker, thorough: bool) -> float:
    """Return the largest difference that merging makes to a logit, over the largest logit."""
    found: list[float] = []

    def compare(model: Any, live: Live) -> None:
        unmerged = logits(model, live)
        merged = case.tuner.merged(model)
        if merged is not None:
            found.append(float((logits(merged, live) - unmerged).abs().max() / unmerged.abs().max()))

    run(make(), *case.techniques, after=compare)
    if not found:
        raise Silent("does not merge")
    return found[0]


def frozen(case: Case, make: Maker, thorough: bool) -> float:
    """Count frozen parameters that moved, and each way in which the proof differs from our own look."""
    seen: list[tuple[dict[str, torch.Tensor], dict[str, bool]]] = []
    sizes: dict[str, int] = {}

    def look(model: Any, live: Live) -> None:
        named = dict(model.named_parameters())
        sizes.update({name: weights_in(parameter) for name, parameter in named.items()})
        copies = {name: parameter.detach().clone() for name, parameter in named.items()}
        seen.append((copies, {name: parameter.requires_grad for name, parameter in named.items()}))

    trained = run(make(), *case.techniques, before=look, after=look)
    (before, trains), (after, _) = seen
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    allowed = {name for name, flag in trains.items() if flag}
    proof = dict(zip(case.cells, trained.proofs, strict=True))["tuning"]
    observed = trained.live.observed
    first, last = observed["initial_weights"], observed["final_weights"]
    faults = [
        before.keys() != after.keys(),
        not moved,
        bool(moved - allowed),
        proof["tensors_moved"] != len(moved),
        proof["frozen_tensors_unchanged"] != len(after.keys() - allowed),
        proof["trainable_parameters"] != sum(sizes[name] for name in allowed),
        proof["total_parameters"] != sum(sizes.values()),
        {name for name in last if first[name] != last[name]} != moved,
    ]
    return float(sum(faults))


def weights_in(parameter: torch.nn.Parameter) -> int:
    """Count weights; of a packed 4-bit matrix those that its shape says, two in a byte."""
    packed = getattr(parameter, "quant_state", None)
    return parameter.numel() if packed is None else math.prod(packed.shape)


def evaluation(case: Case, make: Maker, thorough: bool) -> float:
    """Return how far logits move with epoch and global draws, or with all but tuning and stress taken off.

    Weights that were learnt under stress read rescaled inputs, so they are read under it.
    """
    found: list[torch.Tensor] = []
    with tempfile.TemporaryDirectory() as folder:

        def look(model: Any, live: Live) -> None:
            found.append(logits(model, live, epoch=0))
            torch.rand(5)
            found.append(logits(model, live, epoch=7))
            case.tuner.save(model, Path(folder))

        run(make(), *case.techniques, after=look)
        kept = {axis: level for axis, level in case.chosen.items() if axis == "stress"}
        alone, live = Case(case.name, {**kept, "tuning": case.tuner}), Live(seed=0, steps=8)
        with applied(alone, make(), live) as model:
            alone.tuner.load(model, Path(folder))
            found.append(logits(model, live))
    return tiny.largest(difference(found[0], other) for other in found[1:])


def padding(case: Case, make: Maker, thorough: bool) -> float:
    """Return the relative change of a short row's loss when a long row pads it; training and evaluation."""
    rows = sorted(tiny.rows(12, seed=3), key=lambda row: len(row.input_ids))
    short, long = rows[0], rows[-1]
    found: list[float] = []

    def compare(model: Any, live: Live) -> None:
        for training in (True, False):
            alone, padded = (row_loss(model, live, batch, training) for batch in ([short], [short, long]))
            found.append(abs(alone - padded) / abs(alone))

    run(make(dtype=torch.float64), *case.techniques, max_steps=2, after=compare, proofs=False)
    return tiny.largest(found)


def draws(case: Case, make: Maker, thorough: bool) -> float:
    """Count seeds of random numbers that are no named sub-seed, or start numbers in two places."""
    model = make()
    with drawings() as used, _drawing():
        run(model, *case.techniques)
    return float(sum(seed not in given or len(places) > 1 for seed, places in used.items()))


@contextmanager
def _drawing() -> Iterator[None]:
    """Let runs keep what they know in a `Live` that remembers the sub-seeds it gave out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "Live", Drawing)
        yield


LAWS: dict[str, Law] = {
    "null": Law(null, 0.0, "Levels that do nothing change no bit."),
    "split": Law(split, 1e-8, "1, 2 and 4 micro-batches end at the same fp64 weights."),
    "gradient": Law(gradient, 1e-6, "Splits give the same fp32 gradient, relative, from equal weights."),
    "rerun": Law(rerun, 0.0, "A rerun is identical, whatever ran before."),
    "resume": Law(resume, 0.0, "Stopped and resumed, it ends where the whole run ends."),
    "trace": Law(trace, 0.0, "Nothing is left on a model after training under it failed."),
    "reload": Law(reload, 0.0, "Saved, and loaded beside a fresh base, it gives the same logits."),
    "merge": Law(merge, 1e-5, "Merged into the base it gives the same logits, relative to the largest."),
    "frozen": Law(frozen, 0.0, "Frozen parameters stay, and the proof names what changed."),
    "evaluation": Law(evaluation, 0.0, "Evaluation has no noise, dropout or rounding in it."),
    "padding": Law(padding, 1e-6, "A row's loss does not depend on the padding of its batch."),
    "draws": Law(draws, 0.0, "Every random number has a sub-seed of its own."),
}
