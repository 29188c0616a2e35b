"""Gradient checkpointing: activations are computed again in the backward pass instead of being kept.

Gradients are the same to the last bit on a CPU: the second pass does the same sums, and draws of noise and
dropout are keyed by example, so that it meets the same ones.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field

from paribus.machine import Machine
from paribus.techniques.base import (
    OF_THIS_PROCESS,
    Live,
    NoEffect,
    Obstacle,
    Setting,
    Technique,
    added_later,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_OBSERVED = "gradient_checkpointing"
_WAY_OUT = "set gradient_checkpointing: none"
PREFIXED: Final = Obstacle(
    "prefix tuning puts its keys and values into the cache, which gradient checkpointing does not keep: "
    "layers that are computed again would not see the prefix",
    "set gradient_checkpointing: none, or tuning: prompt",
)
"""Why no layer is computed again where a prefix stands in the cache."""


class NoCheckpointing(Technique):
    """Keep every activation for the backward pass."""

    kind: Literal["none"] = "none"


class _Checkpointing(Technique):
    """What the schemes share: the layers of the decoder, the function that checkpoints, and the count."""

    paper: ClassVar = "Chen et al. 2016, arXiv:1604.06174"

    use_reentrant: bool = added_later(False, as_if_absent=False)

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Checkpoint the chosen layers while training; scoring, which has no backward pass, is left alone."""
        if any(config.peft_type == "PREFIX_TUNING" for config in getattr(model, "peft_config", {}).values()):
            raise NoEffect(_OBSERVED, *PREFIXED)
        layers = decoder_layers(model)
        counted = live.observed[_OBSERVED] = Counted(len(layers))
        with ExitStack() as stack:
            if self.use_reentrant:
                embedding = model.get_input_embeddings()
                stack.callback(embedding.register_forward_hook(_with_gradient).remove)
            self._install(layers, counted, stack)
            yield model

    @abstractmethod
    def _install(self, layers: Sequence[Any], counted: Counted, stack: ExitStack) -> None:
        """Have layers run again in the backward pass, counted, until the stack is closed."""

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return how many layers ran again in the backward pass, and the most bytes kept of a micro-batch."""
        counted: Counted = live.observed[_OBSERVED]
        if not counted.again:
            reason = "no layer was computed again in the backward pass"
            raise NoEffect(_OBSERVED, reason, _WAY_OUT)
        return {
            "layers": counted.layers,
            "layers_checkpointed": len(counted.checkpointed),
            "layer_forwards": counted.forwards,
            "layer_forwards_again": counted.again,
            "checkpoint_bytes": counted.most_bytes,
        }


class LayerCheckpointing(_Checkpointing):
    """Keep the input of every layer of the decoder and compute the rest of it again.

    - `use_reentrant`: run the second pass as a backward pass of its own, torch's older way; the input of the
      first layer is then made to require a gradient, without which nothing in a checkpointed layer trains
      where the embedding is frozen. `false` records what the first pass would have kept.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174, with segments
    of one layer.
    """

    kind: Literal["layers"] = "layers"

    def _install(self, layers: Sequence[Any], counted: Counted, stack: ExitStack) -> None:
        _by_layer(dict(enumerate(layers)), self.use_reentrant, counted, stack)


class EveryCheckpointing(_Checkpointing):
    """Checkpoint every n-th layer of the decoder, from the first: layers 0, n, 2n and so on.

    The other layers keep their activations.

    - `every_n_layers`: n; 1 is `layers`.
    - `use_reentrant`: as under `layers`.

    Source: Chen et al. 2016, arXiv:1604.06174.
    """

    kind: Literal["every"] = "every"
    every_n_layers: int = Field(2, ge=2)

    def _install(self, layers: Sequence[Any], counted: Counted, stack: ExitStack) -> None:
        chosen = {number: layers[number] for number in range(0, len(layers), self.every_n_layers)}
        _by_layer(chosen, self.use_reentrant, counted, stack)


class SequentialCheckpointing(_Checkpointing):
    """Cut the decoder into segments of consecutive layers and keep the input of each alone.

    A segment is computed again as a whole. All have `layers // segments` layers but the last, which has the
    rest and keeps its activations, as in `torch.utils.checkpoint.checkpoint_sequential`. With about the root
    of the number of layers, what is kept grows with that root.

    - `segments`: their number, at most that of the layers.
    - `use_reentrant`: as under `layers`.

    Source: Chen et al. 2016, arXiv:1604.06174, section 4.
    """

    kind: Literal["sequential"] = "sequential"
    segments: int = Field(2, ge=2)

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        """Say so where there are more segments than layers."""
        return self._too_many(setting.model.layers)

    def _too_many(self, layers: int) -> Obstacle | None:
        if self.segments <= layers:
            return None
        reason = f"{layers} decoder layers cannot be cut into {self.segments} segments"
        way_out = f"set segments: {layers} or less" if layers > 1 else "set gradient_checkpointing: layers"
        return Obstacle(reason, way_out)

    def _install(self, layers: Sequence[Any], counted: Counted, stack: ExitStack) -> None:
        found = self._too_many(len(layers))
        if found:
            raise NoEffect(_OBSERVED, *found)
        size = len(layers) // self.segments
        for first in range(0, size * (self.segments - 1), size):
            numbers = range(first, first + size)
            segment = _Segment([layers[number] for number in numbers], numbers, self.use_reentrant, counted)
            for layer in segment.layers:
                stack.callback(_set(layer, _compiled_call_impl=partial(segment.call, layer)))


def decoder_layers(model: torch.nn.Module) -> list[Any]:
    """Return the layers of a decoder in their order; raises NoEffect where they cannot be checkpointed."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    found = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not found:
        name = type(model).__name__
        raise NoEffect(_OBSERVED, f"{name} has no layers that transformers can checkpoint", _WAY_OUT)
    return found


@dataclass
class Counted:
    """What the checkpoints did: which layers, how often they ran and ran again, and bytes of inputs kept."""

    layers: int
    checkpointed: list[int] = field(default_factory=list)
    forwards: int = 0
    again: int = 0
    most_bytes: int = 0
    kept: int = field(default=0, metadata=OF_THIS_PROCESS)

    def keep(self, numbers: Sequence[int], inputs: torch.Tensor) -> None:
        """Note that a checkpoint starts; one of the first layer starts the sum of bytes anew."""
        self.kept = inputs.numel() * inputs.element_size() + (self.kept if numbers[0] else 0)
        self.most_bytes = max(self.most_bytes, self.kept)
        self.checkpointed = sorted({*self.checkpointed, *numbers})
        self.forwards += len(numbers)


def _checkpoint(
    function: Callable[..., Any],
    inputs: torch.Tensor,
    *others: Any,
    numbers: Sequence[int],
    use_reentrant: bool,
    counted: Counted,
) -> Any:
    """Run a function of activations under a checkpoint, and count how often it runs."""
    from torch.utils.checkpoint import checkpoint

    runs = 0

    def run(*arguments: Any) -> Any:
        nonlocal runs
        counted.again += len(numbers) * (runs > 0)
        runs += 1
        return function(*arguments)

    counted.keep(numbers, inputs)
    return checkpoint(run, inputs, *others, use_reentrant=use_reentrant, preserve_rng_state=True)


def _by_layer(layers: dict[int, Any], use_reentrant: bool, counted: Counted, stack: ExitStack) -> None:
    """Have transformers' layers checkpoint themselves, each by our function."""
    for number, layer in layers.items():
        function = partial(_checkpoint, numbers=(number,), use_reentrant=use_reentrant, counted=counted)
        stack.callback(_set(layer, gradient_checkpointing=True, _gradient_checkpointing_func=function))


def _set(layer: Any, **own: Any) -> Callable[[], None]:
    """Give a layer attributes of its own; returns what takes them off again."""
    before = {name: vars(layer)[name] for name in own if name in vars(layer)}
    vars(layer).update(own)

    def restore() -> None:
        for name in own:
            del vars(layer)[name]
        vars(layer).update(before)

    return restore


class _Segment:
    """Consecutive layers under one checkpoint, called by the model one by one.

    Each call but the last hands its input on and is remembered with its arguments; the last runs them all.
    Hooks on a layer see what the layer itself takes and gives, because the whole call is put off.
    """

    def __init__(
        self, layers: Sequence[Any], numbers: Sequence[int], use_reentrant: bool, counted: Counted
    ) -> None:
        self.layers, self.numbers, self.use_reentrant, self.counted = layers, numbers, use_reentrant, counted
        self.waiting: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def call(self, layer: Any, hidden: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        import torch

        if not (layer.training and torch.is_grad_enabled()):
            return layer._call_impl(hidden, *arguments, **named)
        if layer is self.layers[0]:
            self.waiting = []
        self.waiting.append((layer, arguments, named))
        if layer is not self.layers[-1]:
            return hidden
        calls, self.waiting = self.waiting, []
        return _checkpoint(
            partial(_run, calls),
            hidden,
            numbers=self.numbers,
            use_reentrant=self.use_reentrant,
            counted=self.counted,
        )


def _run(calls: Sequence[tuple[Any, tuple[Any, ...], dict[str, Any]]], hidden: torch.Tensor) -> torch.Tensor:
    for layer, arguments, named in calls:
        hidden = layer._call_impl(hidden, *arguments, **named)
    return hidden


def _with_gradient(module: torch.nn.Module, _: Any, embedded: torch.Tensor) -> None:
    """Let gradients flow to what is computed from a frozen embedding."""
    import torch

    if module.training and torch.is_grad_enabled():
        embedded.requires_grad_(True)
