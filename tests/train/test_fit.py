"""The largest micro-batch that fits is found by training, and finding it leaves no trace."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from paribus.plan.trial import Training
from paribus.techniques import Accumulation, Dropout, Fp8, Full, Live, Lora, NoEffect, Noise
from paribus.techniques.tuning.weights import digests
from paribus.train import fit, session
from paribus.train.memory import out_of_memory
from paribus.train.trainer import AblationTrainer

AUTO = Accumulation(micro_batch="auto")
FULL = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes."


def card(rows: int) -> type[AblationTrainer]:
    """Return a trainer on a card that holds so many rows of a micro-batch."""

    class Card(AblationTrainer):
        def _loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
            if len(labels) > rows:
                raise RuntimeError(FULL.format(1000 * len(labels)))
            return super()._loss(outputs, labels, num_items_in_batch)

    return Card


@pytest.mark.parametrize(
    ("whole", "room", "found", "tried"),
    [
        (16, 99, 16, [16]),
        (16, 5, 4, [16, 8, 4]),
        (24, 8, 8, [24, 12, 6, 8]),
        (24, 7, 6, [24, 12, 6, 8]),
        (60, 14, 12, [60, 30, 15, 6, 12]),
        (7, 3, 1, [7, 1]),
    ],
)
def test_the_largest_divisor_that_fits_is_found(whole: int, room: int, found: int, tried: list[int]) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= room

    assert fit.largest(whole, fits) == found
    assert asked == tried


def test_what_does_not_fit_is_halved_and_the_attempts_are_in_the_proof() -> None:
    run = tiny.run(tiny.llama(), Full(), AUTO, trainer_class=card(3), effective_batch_size=8)
    proof = run.proofs[1]
    assert proof["attempts"] == [
        {"size": 8, "fitted": False, "requested_bytes": 8000},
        {"size": 4, "fitted": False, "requested_bytes": 4000},
        {"size": 2, "fitted": True},
    ]
    assert (proof["micro_batch"], proof["steps"], run.trained.resolved["micro_batch"]) == (2, 4, 2)
    assert proof["optimizer_steps_by_micro_batches"] == {"4": 8}


STACKS = {
    "full": (Full(), Noise(alpha=5)),
    "lora": (Lora(r=4), Fp8(compute="emulated"), Noise(alpha=5), Dropout(p=0.1)),
}


@pytest.mark.parametrize("room", [99, 3])
@pytest.mark.parametrize("stack", STACKS)
def test_a_run_after_the_search_is_the_run_without_it(stack: str, room: int) -> None:
    """Bit for bit: weights, losses, order, and the proof of every technique beside it."""
    techniques, steps = STACKS[stack], 1 if room == 99 else 4
    found = tiny.run(tiny.llama(), *techniques, AUTO, trainer_class=card(room))
    given = tiny.run(tiny.llama(), *techniques, Accumulation(steps=steps))
    assert found.trained.curve_sha256 == given.trained.curve_sha256
    assert found.trained.order_sha256 == given.trained.order_sha256
    assert found.trained.counts == given.trained.counts
    assert found.live.micro_batches == given.live.micro_batches
    assert tiny.distance(found, given) == 0
    assert found.proofs[:-1] == given.proofs[:-1]


def test_no_split_found_differs_from_another_by_more_than_rounding() -> None:
    whole, split = (tiny.run(tiny.llama(), Full(), AUTO, trainer_class=card(room)) for room in (99, 2))
    assert whole.losses == pytest.approx(split.losses, rel=1e-5)


class Traces:
    """Everything of a model and of its surroundings that a search could change, to the last bit."""

    def __init__(self, model: Any, live: Live) -> None:
        self.model, self.live = model, live
        self.seen = self.now()

    def now(self) -> list[Any]:
        model, live = self.model, self.live
        return [
            digests(model),
            {name: buffer.tolist() for name, buffer in model.named_buffers()},
            [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
            [module.training for module in model.modules()],
            sorted(vars(model)),
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),  # type: ignore[union-attr]
            {name: repr(value) for name, value in vars(live).items()},
        ]

    def changed(self) -> list[int]:
        return [n for n, (one, other) in enumerate(zip(self.seen, self.now(), strict=True)) if one != other]


def model_with_a_past() -> Any:
    """A model that has a buffer, gradients, a module in evaluation mode and a weight of minus zero."""
    model = tiny.llama()
    model.register_buffer("seen", torch.arange(3.0))
    model.model.layers[0].eval()
    model.model.norm.weight.grad = torch.ones(32)
    with torch.no_grad():
        model.model.norm.weight[3] = -0.0
    return model


def spoil(model: Any, live: Live) -> None:
    """Do what a training run does, and worse."""
    model.train()
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    model.seen += 1
    for parameter in model.parameters():
        parameter.grad = None
        with torch.no_grad():
            parameter.mul_(float("nan"))
    live.step, live.epoch, live.example_ids = 7, 3, ("x",)
    live.micro_batches[9] += 1
    live.observed["noise"]["examples"] += 1
    live.observed["new"] = 1


@pytest.mark.parametrize("error", [None, RuntimeError("stop"), MemoryError()])
def test_nothing_is_changed_by_what_is_tried_however_it_ends(error: Any, tmp_path: Path) -> None:
    model, live = model_with_a_past(), Live(seed=0)
    live.observed["noise"] = held = {"examples": 2}
    traces = Traces(model, live)
    try:
        with fit.untouched(model, live, tmp_path):
            spoil(model, live)
            if error:
                raise error
    except (RuntimeError, MemoryError) as raised:
        assert raised is error
    assert traces.changed() == []
    assert live.observed["noise"] is held  # who holds it sees what it was
    assert list(tmp_path.iterdir()) == []


def test_the_traces_would_be_seen() -> None:
    model, live = model_with_a_past(), Live(seed=0)
    live.observed["noise"] = {"examples": 2}
    traces = Traces(model, live)
    spoil(model, live)
    assert traces.changed() == [0, 1, 2, 3, 5, 6, 7, 8]


def test_a_real_search_leaves_no_trace(tmp_path: Path) -> None:
    model, live = model_with_a_past(), Live(seed=0)
    rows = tiny.rows(24)
    training = Training(effective_batch_size=8, max_steps=4, learning_rate=1e-3)
    with Full().applied(model, live), Noise(alpha=5).applied(model, live):
        traces = Traces(model, live)
        seen: list[Any] = []

        def attempt(kind: Any, few: Any, small: Training, steps: int) -> None:
            seen.append((len(few), small.effective_batch_size, small.max_steps, steps))
            tiny_train(kind, model, few, small, live, steps, tmp_path)

        assert fit.micro_batches(model, rows, training, live, attempt, card(4), tmp_path) == 2
        del live.observed["micro_batch"]
        assert traces.changed() == []
    assert seen == [(16, 8, 2, 1), (16, 8, 2, 2)]


def tiny_train(kind: Any, model: Any, few: Any, small: Any, live: Live, steps: int, folder: Path) -> None:
    settings = session.arguments(small, 0, folder, {"gradient_accumulation_steps": steps})
    with session._unchanged(model):
        kind(
            model,
            settings,
            few,
            live,
            pad_token_id=0,
            readers=(),
            listener=lambda *_: None,
            techniques=(Full(), Noise(alpha=5)),
        ).train()


def test_what_is_tried_is_the_longest_batch_that_there_is() -> None:
    """Every micro-batch of the search has the longest rows, and training meets none that is longer."""
    sizes: dict[str, list[tuple[int, int]]] = {"search": [], "run": []}

    class Sized(AblationTrainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            kind = "run" if type(self) is Sized else "search"
            sizes[kind].append(tuple(inputs["input_ids"].shape))
            return super().training_step(model, inputs, num_items_in_batch)

    rows = tiny.rows(24)
    tiny.run(tiny.llama(), Full(), AUTO, trainer_class=Sized, examples=rows)
    assert sizes["search"] == [(8, max(len(row.input_ids) for row in rows))] * 2
    assert max(tokens for _, tokens in sizes["run"]) <= sizes["search"][0][1]


def test_not_even_one_example_fits() -> None:
    with pytest.raises(RuntimeError, match="you tried to allocate 1000 bytes"):
        tiny.run(tiny.llama(), Full(), AUTO, trainer_class=card(0))


def test_another_error_is_no_lack_of_memory() -> None:
    class Broken(AblationTrainer):
        def _loss(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        tiny.run(tiny.llama(), Full(), AUTO, trainer_class=Broken)


def test_a_technique_does_not_act_after_a_step_that_is_only_tried() -> None:
    acted: list[int] = []

    class Acting(Noise):
        def after_step(self, model: torch.nn.Module, live: Live) -> None:
            acted.append(live.step)

    tiny.run(tiny.llama(), Full(), Acting(alpha=5), AUTO, max_steps=3)
    assert acted == [0, 1, 2]


def test_lack_of_memory_is_known_behind_another_error_s_words() -> None:
    try:
        try:
            raise RuntimeError(FULL.format(77))
        except RuntimeError as error:
            raise NoEffect("a model", "cannot be loaded", "") from error
    except NoEffect as wrapped:
        found = out_of_memory(wrapped, "loading")
    assert found is not None
    assert found.requested_bytes == 77
    assert out_of_memory(NoEffect("a", "b", "c"), "loading") is None
