"""Every law fails on a planted fault: what it measures is then beyond its limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import Case
from torch.nn.functional import cross_entropy, dropout

import tiny
from laws import LAWS
from paribus.techniques import Dropout, Full, Live, Lora, NoEffect, Noise, Technique
from paribus.techniques.tuning import weights
from paribus.train.trainer import AblationTrainer


@contextmanager
def hooked(model: Any, change: Callable[..., Any]) -> Iterator[None]:
    """Have what the embeddings give changed, and take that off again."""
    hook = model.get_input_embeddings().register_forward_hook(change)
    try:
        yield
    finally:
        hook.remove()


class Leaking(Noise):
    """A hook stays in place at alpha 0 and adds as good as nothing."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        with hooked(model, lambda _, __, out: out * (1 + 2e-7)):
            yield model


class Shaped(Noise):
    """One draw for the whole padded batch, scaled by its padded length."""

    def draw(self, live: Live, embedded: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        _, length, width = embedded.shape
        generator = torch.Generator().manual_seed(live.step)
        unit = torch.rand(embedded.shape, generator=generator, dtype=embedded.dtype) * 2 - 1
        return unit * self.alpha / math.sqrt(length * width)


class Unkeyed(Noise):
    """Noise from a generator that nothing seeds."""

    def draw(self, live: Live, embedded: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        generator = torch.Generator()
        generator.seed()
        return torch.rand(embedded.shape, generator=generator).to(embedded.dtype) * 1e-6


class Forgetful(Noise):
    """The hook is removed at a good end only."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        hook = model.get_input_embeddings().register_forward_hook(lambda *_: None)
        yield model
        hook.remove()


class Sediment(Lora):
    """The base has changed in its last bits once the adapter is off."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        try:
            with super().applied(model, live) as wrapped:
                yield wrapped
        finally:
            with torch.no_grad():
                model.model.layers[0].self_attn.q_proj.weight.mul_(1 + 2e-7)


class Unsaved(Lora):
    """One matrix of the adapter is not saved; loading does not ask for it."""

    def save(self, model: torch.nn.Module, folder: Path) -> None:
        weights.save(model, folder / "some.safetensors")

    def load(self, model: torch.nn.Module, folder: Path) -> None:
        from safetensors.torch import load_file

        stored = load_file(folder / "some.safetensors")
        stored.pop(next(name for name in stored if "lora_B" in name))
        model.load_state_dict(stored, strict=False)


class Unmerged(Lora):
    """Merging takes the adapter off and adds nothing to the base."""

    def merged(self, model: torch.nn.Module) -> torch.nn.Module | None:
        return model.unload()  # type: ignore[operator]


class Meddling(Lora):
    """A frozen weight moves with each step, and the proof does not look."""

    def after_step(self, model: torch.nn.Module, live: Live) -> None:
        super().after_step(model, live)
        with torch.no_grad():
            next(p for p in model.parameters() if not p.requires_grad)[0] += 1e-3

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        names, after = weights.trainable(model), weights.digests(model)
        live.observed["final_weights"] = after
        sizes = {name: p.numel() for name, p in model.named_parameters()}
        return {
            "tensors_moved": len(names),
            "frozen_tensors_unchanged": len(after) - len(names),
            "trainable_parameters": sum(sizes[name] for name in names),
            "total_parameters": sum(sizes.values()),
        }


class Boasting(Lora):
    """The proof counts one parameter too many."""

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        found = super().proof(model, live)
        return found | {"trainable_parameters": found["trainable_parameters"] + 1}


class Unapplied(Lora):
    """The adapter is there and switched off."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        with super().applied(model, live) as wrapped:
            for name, module in wrapped.named_modules():
                if name.endswith(("_A.default", "_B.default")):
                    module.register_forward_hook(lambda _, __, out: out * 0)
            yield wrapped


class Restless(Noise):
    """Noise is added in evaluation too."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        def add(_: Any, __: Any, out: torch.Tensor) -> torch.Tensor:
            return out + self.draw(live, out)

        live.observed["noise"] = None
        with hooked(model, add):
            yield model

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        return {}


class Borrowing(Dropout):
    """Dropout takes the seed of the noise."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        def drop(module: torch.nn.Module, _: Any, out: torch.Tensor) -> torch.Tensor | None:
            if not module.training:
                return None
            kept = torch.ones_like(out)
            for row, (example_id, length) in enumerate(zip(live.example_ids, live.lengths, strict=True)):
                generator = torch.Generator().manual_seed(live.draw_seed("noise", live.epoch, example_id))
                kept[row, :length] = (torch.rand(length, out.shape[-1], generator=generator) > self.p).to(out)
            return out * kept

        with hooked(model, drop):
            yield model

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        return {}


class Nameless(Full):
    """Initial values come from the trial's bare seed."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        with super().applied(model, live) as same, torch.random.fork_rng(devices=[]):
            torch.manual_seed(live.seed)
            yield same


class Batched(Dropout):
    """Dropout is torch's own: its draws follow the shape of the batch."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        with hooked(model, lambda module, _, out: dropout(out, self.p, module.training)):
            yield model

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        return {}


def case(*levels: Technique) -> Case:
    axes = {Noise: "neftune_noise_alpha", Dropout: "dropout", Lora: "tuning", Full: "tuning"}
    return Case(
        "planted",
        {next(a for kind, a in axes.items() if isinstance(level, kind)): level for level in levels},
    )


FAULTS: list[tuple[str, Case]] = [
    ("null", case(Leaking(alpha=0))),
    ("split", case(Shaped(alpha=5))),
    ("split", case(Batched(p=0.1))),
    ("gradient", case(Shaped(alpha=5))),
    ("rerun", case(Unkeyed(alpha=5))),
    ("trace", case(Forgetful(alpha=5))),
    ("trace", case(Sediment())),
    ("reload", case(Unsaved())),
    ("merge", case(Unmerged())),
    ("frozen", case(Meddling())),
    ("frozen", case(Boasting())),
    ("evaluation", case(Restless(alpha=5))),
    ("padding", case(Shaped(alpha=5))),
    ("draws", case(Noise(alpha=5), Borrowing(p=0.1))),
    ("draws", case(Nameless())),
]


def sizes(law: str, planted: Case) -> float:
    return LAWS[law](planted, tiny.llama)


@pytest.mark.parametrize(
    ("law", "planted"),
    FAULTS,
    ids=lambda one: one if isinstance(one, str) else type(one.techniques[-1]).__name__,
)
def test_the_law_catches(law: str, planted: Case) -> None:
    assert sizes(law, planted) > LAWS[law].limit


def test_every_law_has_a_planted_fault() -> None:
    assert LAWS.keys() - {law for law, _ in FAULTS} == {"resume"}


def test_an_adapter_that_is_not_applied_is_told() -> None:
    with pytest.raises(NoEffect, match="no parameter moved"):
        sizes("frozen", case(Unapplied()))


def mean_of_means(
    self: Any, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None
) -> torch.Tensor:
    """Count each micro-batch the same, however few targets it has."""
    logits, wanted = outputs.logits[:, :-1], labels[:, 1:]
    mean = cross_entropy(logits[wanted != -100], wanted[wanted != -100])
    return mean / self.current_gradient_accumulation_steps


@pytest.mark.parametrize("law", ["split", "gradient"])
def test_the_law_catches_a_mean_of_means(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AblationTrainer, "_loss", mean_of_means)
    assert sizes(law, case(Full())) > 1e-4


def forgotten(*_: Any, **__: Any) -> None:
    """Put nothing back."""


LOST: list[tuple[str, Callable[..., None]]] = [
    ("_load_optimizer_and_scheduler", forgotten),
]


@pytest.mark.parametrize(("method", "fault"), LOST)
def test_the_law_catches_a_resumed_run_without_its_optimizer(
    method: str, fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AblationTrainer, method, fault)
    assert sizes("resume", case(Lora(r=4))) > 0
