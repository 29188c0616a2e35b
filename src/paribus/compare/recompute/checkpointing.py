"""Claims of the chapter on gradient checkpointing: what is kept, what is computed again, what it changes."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.shapes import decoded, kept_bytes, on_meta, quiet, tiny_llama, with_lora

if TYPE_CHECKING:
    import torch

Scheme = Literal["none", "layers", "roots", "eight"]
"""Nothing, each layer (the model's own switch), as many segments as the root of the layers, or 8 segments."""
SEGMENTS: Final = 8
"""The number of segments in the chapter's listing."""
TOKENS: Final = 512
ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
RANK: Final = 16
ALPHA: Final = 32
"""What LoRA adapts in the chapter's listing, its rank and its alpha."""


def kept(layers: int, scheme: Scheme) -> int:
    """Measure the bytes that layers of a 7B model keep of 512 tokens for the backward pass."""
    return _held(layers, scheme) - _held(0, "none")


@cache
def _held(layers: int, scheme: Scheme) -> int:
    import torch

    from paribus.techniques import Live, NoCheckpointing, SequentialCheckpointing

    model = on_meta("llama_2_7b", num_hidden_layers=layers).train()
    if scheme == "layers":
        with quiet():
            model.gradient_checkpointing_enable()
    segments = {"roots": math.isqrt(layers), "eight": SEGMENTS}.get(scheme)
    technique = SequentialCheckpointing(segments=segments) if segments else NoCheckpointing()
    hidden = torch.empty(1, TOKENS, model.config.hidden_size, device="meta", requires_grad=True)
    with technique.applied(model, Live(seed=0)):
        return kept_bytes(model, hidden)


def growth(scheme: Scheme) -> float:
    """Return the power of the number of layers with which that grows, from 16 to 64 layers."""
    return math.log(kept(64, scheme) / kept(16, scheme)) / math.log(64 / 16)


def of_the_listing() -> tuple[Statement, Statement]:
    """Say of the two calls of the listing whether what they keep grows with the root of the layers."""
    eight, switch = growth("eight"), growth("layers")
    return (
        Statement(
            says=f"with segments={SEGMENTS}, as listed, activations grow with the root of the layers",
            holds=abs(eight - 0.5) < 0.1,
            found=f"with their number to the power {eight:.2f}",
        ),
        Statement(
            says="under gradient_checkpointing_enable(), as listed, they grow with that root",
            holds=abs(switch - 0.5) < 0.1,
            found=f"to the power {switch:.2f}: the input of each layer is kept, "
            f"{kept(64, 'layers') / kept(64, 'roots'):.2f} of the bytes of root-many segments in 64 layers",
        ),
    )


@cache
def more_operations(tuning: Literal["full", "lora"], *, whole_pass: bool) -> float:
    """Count how many per cent more operations a step of 7B takes when each layer is checkpointed.

    A second pass that is no whole one ends where it has what the backward pass needs.
    """
    plain = operations(tuning, None)
    return 100 * (operations(tuning, whole_pass) / plain - 1)


@cache
def operations(tuning: str, whole_pass: bool | None = None) -> float:
    """Count a step's operations from one and two layers, which all others are like; None: no second pass."""
    one, two = (_counted(layers, tuning, whole_pass) for layers in (1, 2))
    return one + 31 * (two - one)


def _counted(layers: int, tuning: str, whole_pass: bool | None) -> int:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = on_meta("llama_2_7b", num_hidden_layers=layers)
    if tuning == "lora":
        with_lora(model, ATTENTION, RANK, ALPHA)
    if whole_pass is not None:
        with quiet():
            model.gradient_checkpointing_enable({"use_reentrant": whole_pass})
    hidden = torch.empty(1, TOKENS, model.config.hidden_size, device="meta", requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        decoded(model.train(), hidden).sum().backward()
    return counter.get_total_flops()


def b14() -> Computed:
    """Run both calls of the listing and count which layers run again."""
    import torch
    from torch.utils.checkpoint import checkpoint_sequential

    with torch.random.fork_rng():
        layers = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(2 * SEGMENTS)])
    runs: Counter[torch.nn.Module] = Counter()
    for layer in layers:
        layer.register_forward_pre_hook(lambda layer, _: runs.update([layer]))
    trained = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for requires in (False, True):
            layers.zero_grad()
            runs.clear()
            x = torch.ones(2, 4, requires_grad=requires)
            checkpoint_sequential(layers, segments=SEGMENTS, input=x).sum().backward()
            trained.append(sum(layer.weight.grad is not None for layer in layers))
    again = sum(count == 2 for count in runs.values())
    warned = any("use_reentrant" in str(one.message) for one in caught)
    switched = on_meta("llama_2_7b", num_hidden_layers=1)
    with quiet():
        switched.gradient_checkpointing_enable()
    return computed(
        {
            "segments": again * SEGMENTS / len(layers) + 1,
            "layers": len(layers),
            "layers_trained_from_plain_data": trained[0],
        },
        Statement(
            says="the listed call runs",
            holds=trained[1] == len(layers),
            found=f"it {'warns that use_reentrant is to be said, and ' if warned else ''}"
            f"where x needs no gradient {trained[0]} of {len(layers)} layers get one; "
            "the last segment is never computed again",
        ),
        Statement(
            says="the model's own switch runs",
            holds=bool(switched.model.layers[0].gradient_checkpointing),
            found="transformers checkpoints each layer",
        ),
    )


def b15() -> Computed:
    """Measure how what is kept grows with the layers: without, in root-many segments, and as listed."""
    return computed(
        {"exponent.without": growth("none"), "exponent.with": growth("roots")},
        *of_the_listing(),
    )


def b16() -> Computed:
    """Count what a second forward pass costs, in operations."""
    whole, early = (more_operations("full", whole_pass=whole) for whole in (True, False))
    lora = more_operations("lora", whole_pass=True)
    return computed(
        {
            "operations.more": (whole, "%"),
            "operations.more.second_pass_ends_early": (early, "%"),
            "operations.more.lora": (lora, "%"),
        },
        Statement(
            says="the price is one more forward pass",
            holds=early < whole < 100 / 3,
            found=f"in operations of a 7B model, not in seconds: {whole:.0f} % in full tuning, {early:.0f} % "
            f"where the second pass ends early, as it does by default, and {lora:.0f} % under LoRA",
        ),
    )


def b17() -> Computed:
    """Train a small model whole and in two shards, with and without checkpointing."""
    import torch

    found = {(cards, again): _trained(cards, again) for cards in (1, 2) for again in (False, True)}
    first = found[1, False]
    same = all(
        torch.equal(one, other)
        for weights in found.values()
        for one, other in zip(first, weights, strict=True)
    )
    return computed(
        {},
        Statement(
            says="checkpointing can be added to ZeRO",
            holds=same,
            found="after 3 AdamW steps weights are the same bit for bit, optimizer state in one part or two, "
            "checkpointed or not",
        ),
    )


def _trained(cards: int, again: bool) -> list[torch.Tensor]:
    """Take three steps, each card with its rows of the batch and the optimizer state of its parameters."""
    import torch

    from paribus.techniques import LayerCheckpointing, Live, NoCheckpointing

    model = tiny_llama().train()
    ids = torch.arange(4 * 8).view(4, 8)
    parameters = list(model.parameters())
    optimizers = [torch.optim.AdamW(parameters[card::cards], lr=0.01) for card in range(cards)]
    scheme = LayerCheckpointing() if again else NoCheckpointing()
    with scheme.applied(model, Live(seed=0)) as changed:
        for _ in range(3):
            for rows in ids.chunk(2):
                (changed(input_ids=rows, labels=rows, use_cache=False).loss / 2).backward()
            for optimizer in optimizers:
                optimizer.step()
            changed.zero_grad()
    return [parameter.detach() for parameter in parameters]


ROWS = {"B14": b14, "B15": b15, "B16": b16, "B17": b17}
