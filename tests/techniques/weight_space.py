"""What every method that changes weights is asked: its start, its size, merging, reloading, splitting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import tiny
from paribus.techniques import Accumulation, Live, ModelFacts, Technique

IDS = torch.arange(3, 27).reshape(2, 12)


def logits(model: Any) -> torch.Tensor:
    """Return what a model says of two fixed rows, in evaluation."""
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


@contextmanager
def fresh(name: str, tuning: Any, run: tiny.Run) -> Iterator[Any]:
    """Yield a new model under a tuning, as a run began with."""
    with tuning.applied(tiny.MODELS[name](), Live(seed=run.live.seed, steps=run.live.steps)) as model:
        yield model


class Found:
    """A run of eight steps, what it started from, and what became of it when saved, loaded and merged."""

    def __init__(self, name: str, tuning: Any, folder: Path, **training: Any) -> None:
        model = tiny.MODELS[name]()
        self.base = logits(model)
        self.run = tiny.run(model, tuning, before=self._before, after=self._after(tuning, folder), **training)
        self.left = logits(model)
        self.proof: dict[str, Any] = self.run.proofs[0]
        with fresh(name, tuning, self.run) as again:
            tuning.load(again, folder)
            self.reloaded = logits(again)
            merged = tuning.merged(again)
            self.merged = None if merged is None else logits(merged)

    def _before(self, model: Any, live: Live) -> None:
        self.start = logits(model)
        model.train()

    def _after(self, tuning: Any, folder: Path) -> Any:
        def after(model: Any, live: Live) -> None:
            self.end = logits(model)
            tuning.save(model, folder)

        return after

    def check(self, *, exact_start: bool = True) -> None:
        """Assert what holds for every method: the base is put back, reloading is exact, merging is nearly."""
        assert torch.equal(self.left, self.base)
        assert torch.equal(self.reloaded, self.end)
        assert self.merged is not None
        assert (self.merged - self.end).abs().max() < 1e-6
        assert (self.end - self.base).abs().max() > 1e-6
        assert torch.equal(self.start, self.base) == exact_start


def split_difference(name: str, tuning: Technique, *others: Technique, steps: int = 6) -> float:
    """Return the largest difference of final fp64 weights between one and two micro-batches."""
    runs = [
        tiny.run(
            tiny.MODELS[name](dtype=torch.float64),
            tuning,
            *others,
            Accumulation(steps=split),
            max_steps=steps,
        )
        for split in (1, 2)
    ]
    assert [set(run.live.micro_batches) for run in runs] == [{1}, {2}]
    return tiny.distance(*runs)


def inputs_and_outputs(name: str) -> list[tuple[int, int]]:
    """List the inputs and outputs of each linear layer but the head."""
    found = []
    for path, module in tiny.MODELS[name]().named_modules():
        if type(module).__name__ == "Conv1D":
            found.append(tuple(module.weight.shape))
        elif isinstance(module, torch.nn.Linear) and "head" not in path:
            found.append((module.in_features, module.out_features))
    return found  # type: ignore[return-value]


def start_of(tuning: Any, model: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the initial values that train."""
    with tuning.applied(model, Live(seed=seed, steps=8)) as wrapped:
        return {name: p.detach().clone() for name, p in wrapped.named_parameters() if p.requires_grad}


def unknown_type() -> ModelFacts:
    return tiny.facts("llama").model_copy(update={"model_type": "novel"})
