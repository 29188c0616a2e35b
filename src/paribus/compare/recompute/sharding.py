"""Claims of the chapter on what a training holds, whole and in shards, and what sharding sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.shapes import GB, parameters

CARD: Final = 80.0
"""GB of the card that the chapter speaks of."""
CARDS: Final = 8
ROUND_7B: Final = 7e9
"""The chapter's arithmetic takes a 7B model for 7e9 parameters."""


class Bytes(NamedTuple):
    """Bytes a parameter of mixed-precision training with Adam, as the chapter counts them."""

    weights: float = 2
    gradients: float = 2
    optimizer: float = 12


ADAM: Final = Bytes()


def held(stage: int, cards: int, parts: Bytes = ADAM) -> float:
    """Return the bytes a parameter that one card holds under a ZeRO stage, 0 being plain data parallelism.

    Source: Rajbhandari et al. 2020, arXiv:1910.02054, figure 1.
    """
    shared = [part / cards if stage >= level else part for part, level in zip(parts, (3, 2, 1), strict=True)]
    return sum(shared)


def sent(stage: int) -> float:
    """Return what one card sends in a step, in sizes of the model, each collective once over the ring.

    An all-reduce is a reduce-scatter and an all-gather. Source: arXiv:1910.02054, section 7.
    """
    gradients = ("reduce-scatter",) if stage else ("reduce-scatter", "all-gather")
    weights = {0: (), 1: ("all-gather",), 2: ("all-gather",), 3: ("forward", "backward")}[stage]
    return float(len(gradients) + len(weights))


def _whole(count: float) -> float:
    return count * held(0, 1) / GB


def b01() -> Computed:
    """Count the state of full training of 7B and 70B models."""
    real = {name: (_whole(parameters(name)), "GB") for name in ("llama_2_7b", "llama_3_8b")}
    large = _whole(parameters("llama_2_70b"))
    seven = _whole(ROUND_7B)
    return computed(
        {
            "state.7b": (seven, "GB"),
            "state.70b.least": (large, "GB"),
            "state.70b.most": (large, "GB"),
            **{f"state.{name}": found for name, found in real.items()},
        },
        Statement(
            says=f"a card of {CARD:g} GB cannot hold the state of 7B",
            holds=real["llama_2_7b"][0] > CARD,
            found=f"{real['llama_2_7b'][0]:.0f} GB in Llama-2-7B, before activations",
        ),
    )


def b02() -> Computed:
    """Find whether each way out of a lack of memory lowers what a card holds."""
    from paribus.compare.recompute.checkpointing import kept
    from paribus.compare.recompute.low_rank import state_of_lora

    whole, lora = held(0, 1) * parameters("llama_2_7b"), state_of_lora("llama_2_7b")
    shards = [held(stage, CARDS) for stage in range(4)]
    plain, again = kept(4, "none"), kept(4, "layers")
    return computed(
        {},
        Statement(
            says="sharding lowers it",
            holds=shards == sorted(shards, reverse=True) and shards[0] > shards[3],
            found=f"{shards[0]:g} to {shards[3]:g} bytes a parameter on {CARDS} cards",
        ),
        Statement(
            says="computing activations again lowers it",
            holds=again < plain,
            found=f"{plain / again:.0f} times fewer bytes of activations in 4 layers",
        ),
        Statement(
            says="fewer states lower it",
            holds=lora < whole,
            found=f"{whole / GB:.0f} GB to {lora / GB:.1f} GB of Llama-2-7B under LoRA",
        ),
    )


def b18() -> Computed:
    """Count what eight cards hold in plain data parallelism."""
    card = _whole(ROUND_7B)
    return computed(
        {"card": (card, "GB"), "once": (card, "GB"), "eight_cards": (CARDS * card, "GB")},
        Statement(
            says="weights, gradients and optimizer state are each held by every card",
            holds=held(0, CARDS) == held(0, 1) and held(3, CARDS) * CARDS == held(0, 1),
        ),
    )


def b19() -> Computed:
    """Read the table of ZeRO stages on eight cards."""
    saved = {stage: held(0, CARDS) / held(stage, CARDS) for stage in (1, 2, 3)}
    limit = held(0, 1) / held(1, 10**9)
    more = {stage: 100 * (sent(stage) / sent(0) - 1) for stage in (1, 2, 3)}
    return computed(
        {
            "saved.zero1": (saved[1], "x"),
            "saved.zero2": (saved[2], "x"),
            "saved.zero3": (saved[3], "x"),
            "saved.zero1.many_cards": (limit, "x"),
            "held.zero3.times_cards": CARDS * held(3, CARDS) / held(0, 1),
            "sent_more.zero3": (more[3], "%"),
        },
        Statement(
            says="ZeRO-2 saves more than ZeRO-1, and ZeRO-3 most", holds=saved[1] < saved[2] < saved[3]
        ),
        Statement(says="ZeRO-1 sends as much as plain data parallelism", holds=more[1] == 0),
        Statement(
            says="ZeRO-2 sends a little more",
            holds=more[2] > 0,
            found="a reduce-scatter of gradients and an all-gather of weights, as much as an all-reduce",
        ),
    )


def b20() -> Computed:
    """Count the collectives of ZeRO-3 on a chain of layers that are dropped after use."""
    found = gathered(layers=3, cards=4)
    return computed(
        {
            "gathers.forward": found["forward"],
            "gathers.backward": found["backward"],
            "held.times_cards": held(3, CARDS) * CARDS / held(0, 1),
            "sent": (sent(3), "model sizes"),
            "sent.plain": (sent(0), "model sizes"),
        },
        Statement(
            says="training from shards gives the gradients of the whole model",
            holds=bool(found["same"]),
            found="a chain of 3 layers in 4 shards, in fp64",
        ),
    )


def gathered(layers: int, cards: int) -> Mapping[str, float]:
    """Differentiate a chain of layers of which only shards are held; count the gathers of a layer."""
    import torch

    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(8, 8, generator=generator, dtype=torch.float64) for _ in range(layers)]
    x = torch.randn(4, 8, generator=generator, dtype=torch.float64)
    shards = [weight.flatten().chunk(cards) for weight in weights]
    counts = {"forward": 0, "backward": 0}

    def gather(layer: int, way: str) -> torch.Tensor:
        counts[way] += 1
        return torch.cat(shards[layer]).view(8, 8)

    inputs = [x]
    for layer in range(layers):
        inputs.append(torch.tanh(inputs[-1] @ gather(layer, "forward").t()))
    upstream, found = torch.ones_like(inputs[-1]), []
    for layer in reversed(range(layers)):
        upstream = upstream * (1 - inputs[layer + 1] ** 2)
        found.append(upstream.t() @ inputs[layer])
        upstream = upstream @ gather(layer, "backward")
    for weight in weights:
        weight.requires_grad_()
    hidden = x
    for weight in weights:
        hidden = torch.tanh(hidden @ weight.t())
    wanted = torch.autograd.grad(hidden.sum(), weights)
    same = all(torch.allclose(a, b, atol=1e-12) for a, b in zip(reversed(found), wanted, strict=True))
    return {way: count / layers for way, count in counts.items()} | {"same": same}


def b22() -> Computed:
    """Find which of the advised ways holds the state of 7B and of 70B models."""
    from paribus.compare.recompute.low_rank import qlora_bytes

    small, large = (held(3, CARDS) * parameters(name) / GB for name in ("llama_2_7b", "llama_2_70b"))
    two = large / 2
    one = sum(qlora_bytes("llama_2_7b").values()) / GB
    return computed(
        {},
        Statement(
            says="7B fits one card by QLoRA, or several by FSDP",
            holds=one < CARD and small < CARD,
            found=f"{one:.1f} GB of state, or {small:.1f} GB a card on {CARDS}",
        ),
        Statement(
            says="70B needs FSDP or ZeRO-3 over several machines",
            holds=large > CARD > two,
            found=f"{large:.0f} GB a card on {CARDS} of {CARD:g} GB, {two:.0f} GB on {2 * CARDS}",
        ),
    )


def b24() -> Computed:
    """Count what full tuning needs in training, and stores for each task."""
    stored = parameters("llama_2_7b")
    return computed(
        {
            "state.7b": (_whole(ROUND_7B), "GB"),
            "stored_per_task": (stored / 1e9, "billion parameters"),
            "stored_per_task.16_bits": (2 * stored / GB, "GB"),
        }
    )


def b52() -> Computed:
    """Answer the exercise: the least a card holds of 7B in eight shards."""
    least = ROUND_7B * held(3, CARDS) / GB
    without = ROUND_7B * held(3, CARDS, Bytes(optimizer=4)) / GB
    return computed(
        {"card": (least, "GB"), "card.moments_in_bf16": (without, "GB")},
        Statement(
            says="the bound follows from the chapter's own figures",
            holds=least * CARDS == _whole(ROUND_7B),
            found=f"{_whole(ROUND_7B):g} GB over {CARDS} are {least:g} GB a card",
        ),
    )


def b56() -> Computed:
    """Read the recap of checkpointing and sharding by the rows it sums up."""
    from paribus.compare.recompute.checkpointing import growth, more_operations, of_the_listing

    roots = growth("roots")
    return computed(
        {
            "operations.more": (more_operations("full", whole_pass=True), "%"),
            "activations.exponent": roots,
            "sent_more.zero3": (100 * (sent(3) / sent(0) - 1), "%"),
            "held.zero3.times_cards": CARDS * held(3, CARDS) / held(0, 1),
        },
        *of_the_listing(),
    )


ROWS: Final[dict[str, Callable[[], Computed]]] = {
    "B01": b01, "B02": b02, "B18": b18, "B19": b19, "B20": b20, "B22": b22, "B24": b24, "B52": b52,
    "B56": b56,
}  # fmt: skip
