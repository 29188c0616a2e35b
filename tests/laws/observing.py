"""What the laws look at: logits and losses, all of a model that could change, and who draws numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from cases import Case
from transformers import TrainerCallback

import tiny
from paribus.techniques import Live
from paribus.techniques.tuning.weights import digests
from paribus.train.data import Encoded
from paribus.train.objective import NextToken
from paribus.train.reading import evaluating
from paribus.train.session import without_dropout
from paribus.train.trainer import AblationTrainer

SOURCES = str(Path(__file__).parents[2])
"""Code of the project, in difference to that of libraries."""


def apart(one: tiny.Run, other: tiny.Run) -> float:
    """Return 0 where two runs are equal to the last bit, else their largest difference (at least 1e-300)."""
    equal = (
        one.trained.curve == other.trained.curve
        and one.trained.order_sha256 == other.trained.order_sha256
        and one.weights.keys() == other.weights.keys()
        and all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    )
    if equal:
        return 0.0
    losses = [abs(a - b) for a, b in zip(one.losses, other.losses, strict=True)]
    return tiny.largest((1e-300, tiny.distance(one, other), *losses))


def logits(model: Any, live: Live, rows: Sequence[Encoded] | None = None, epoch: int = 0) -> torch.Tensor:
    """Return the logits of rows as scoring would have them: evaluation mode, no autocast, no gradients."""
    rows = tiny.rows(4, seed=9) if rows is None else rows
    batch = NextToken().collate(rows, 0)
    turn(live, rows, epoch)
    with evaluating(model), torch.no_grad():
        found = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return found[:, -batch["input_ids"].shape[1] :].clone()


def row_loss(model: Any, live: Live, rows: Sequence[Encoded], training: bool) -> float:
    """Return the summed loss of the first of some rows that share a batch."""
    batch = NextToken().collate(rows, 0)
    turn(live, rows, 0)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(without_dropout(model) if training else evaluating(model))
        found = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return float(NextToken().summed(found[:1], batch["labels"][:1]))


def turn(live: Live, rows: Sequence[Encoded], epoch: int) -> None:
    """Say whose turn it is, as the trainer does before each micro-batch."""
    live.example_ids = tuple(row.example_id for row in rows)
    live.lengths = tuple(len(row.input_ids) for row in rows)
    live.epoch = epoch


def stir(model: Any, live: Live) -> None:
    """Move every parameter that trains off its starting value, which is often zero."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            generator = torch.Generator().manual_seed(len(name) + sum(map(ord, name)))
            moves = torch.randn(parameter.shape, generator=generator) * 0.02
            with torch.no_grad():
                parameter.add_(moves.to(parameter.dtype))


@contextmanager
def applied(case: Case, model: Any, live: Live) -> Iterator[Any]:
    """Apply the techniques of a case, in order."""
    with ExitStack() as stack:
        for technique in case.techniques:
            model = stack.enter_context(technique.applied(model, live))
        yield model


HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
)


def state(model: torch.nn.Module) -> dict[str, Any]:
    """Describe all of a model that a technique could change, but the values of its parameters."""
    found: dict[str, Any] = {
        f"module {path}": (
            type(module),
            module.training,
            sorted(vars(module)),
            {name: (id(p), p.requires_grad) for name, p in module._parameters.items() if p is not None},
            {name: _plain(value) for name, value in vars(module).items()},
            [len(getattr(module, hooks)) for hooks in HOOKS],
        )
        for path, module in model.named_modules()
    }
    found |= {f"buffer {name}": buffer.clone().tolist() for name, buffer in model.named_buffers()}
    found["config"] = model.config.to_dict()  # type: ignore[operator, union-attr]
    found["generation"] = model.generation_config.to_dict()  # type: ignore[operator, union-attr]
    return found


def _plain(value: Any) -> Any:
    """Keep what can be compared by value; of any other attribute its type."""
    return value if isinstance(value, int | float | str | bool | None) else type(value).__name__


def changed_values(model: torch.nn.Module, before: dict[str, str], trained: set[int]) -> list[str]:
    """Name the parameters whose values are not those they had, less those that trained (by `id`)."""
    after = digests(model)
    own = dict(model.named_parameters())
    return [name for name in before if after.get(name) != before[name] and id(own.get(name)) not in trained]


class Watched(AblationTrainer):
    """Keeps the whole gradient of each optimizer step in `gradients`, a new list for each trainer."""

    gradients: list[list[torch.Tensor]] = []  # noqa: RUF012  (one collection, read by the law)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        kept: list[torch.Tensor] = []
        self.gradients.append(kept)
        self.add_callback(_Keep(kept))


class _Keep(TrainerCallback):
    def __init__(self, kept: list[torch.Tensor]) -> None:
        self.kept = kept

    def on_pre_optimizer_step(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        if parts:  # a step that is left out has no gradients
            self.kept.append(torch.cat(parts).clone())


class Drawing(Live):
    """A `Live` that knows which sub-seeds it gave out."""

    def draw_seed(self, role: str, *keys: object) -> int:
        seed = super().draw_seed(role, *keys)
        given.add(seed)
        return seed


given: set[int] = set()


@contextmanager
def drawings() -> Iterator[dict[int, set[str]]]:
    """Yield, by seed, the places of the project's code that started random numbers with it."""
    used: dict[int, set[str]] = {}
    given.clear()
    plain, seeded = torch.Generator, torch.manual_seed

    class Seen(plain):
        def manual_seed(self, seed: int) -> torch.Generator:
            _note(used, seed)
            return super().manual_seed(seed)

    def manual_seed(seed: int) -> Any:
        _note(used, seed)
        return seeded(seed)

    torch.Generator, torch.manual_seed = Seen, manual_seed  # type: ignore[misc]
    try:
        yield used
    finally:
        torch.Generator, torch.manual_seed = plain, seeded  # type: ignore[misc]


def _note(used: dict[int, set[str]], seed: int) -> None:
    """Note the place two frames up; what a library seeds for itself is not ours."""
    frame = sys._getframe(2)
    if (file := frame.f_code.co_filename).startswith(SOURCES):
        used.setdefault(int(seed), set()).add(f"{Path(file).name}:{frame.f_lineno}")
