"""Claims of the chapter on the memory of long contexts: attention's matrix, and sequences cut over cards."""

from __future__ import annotations

import math
from functools import cache
from typing import Final

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.shapes import kept_bytes, on_meta

SHORT: Final = 4096
LONG: Final = 131072
"""The window that is widened in the chapter, and the one it is widened to."""


@cache
def _kept(tokens: int, attention: str) -> int:
    """Measure the bytes that one layer of a 7B model keeps of a sequence in 16 bits."""
    import torch

    found = []
    for layers in (0, 1):
        model = on_meta("llama_2_7b", num_hidden_layers=layers, attn_implementation=attention)
        shape = (1, tokens, model.config.hidden_size)
        hidden = torch.empty(shape, device="meta", dtype=torch.bfloat16, requires_grad=True)
        found.append(kept_bytes(model.to(torch.bfloat16), hidden))
    return found[1] - found[0]


def _flash_kept(tokens: int) -> int:
    """Measure what attention keeps where torch computes it in blocks, one narrow head on this CPU."""
    import torch

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, tokens, 8, generator=generator, requires_grad=True) for _ in range(3))
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return sum(storage.nbytes() for storage in kept.values())


def _power(one: float, other: float, times: float) -> float:
    return math.log(other / one) / math.log(times)


def b43() -> Computed:
    """Measure the power of the length with which a layer's activations grow, with and without blocks."""
    short, long = _kept(SHORT, "eager"), _kept(LONG, "eager")
    power = _power(short, long, LONG / SHORT)
    blocks = _power(_flash_kept(256), _flash_kept(1024), 4)
    return computed(
        {"exponent": power, "exponent.in_blocks": blocks},
        Statement(
            says="activations with attention's matrix grow with the square of the length",
            holds=power > 1.9,
            found=f"a layer of 7B keeps {short / 2**30:.1f} GiB of {SHORT:,} tokens and "
            f"{long / 2**30:,.0f} GiB of {LONG:,}; all but the matrix grows linearly",
        ),
        Statement(
            says="in blocks, as FlashAttention has it, attention's memory is linear", holds=blocks < 1.01
        ),
    )


def b47() -> Computed:
    """Compare what a card keeps of its part of a sequence with what one card keeps of the whole."""
    cards = 8
    times = _linear(SHORT) / _linear(SHORT // cards)
    return computed(
        {"times_less": (times, "x"), "cards": cards, "exponent": _power(1, times, cards)},
        Statement(
            says="activations fall linearly with the number of cards",
            holds=math.isclose(times, cards, rel_tol=1e-3),
            found=f"{times:.2f} times less on {cards} cards, without scores, which blocks never keep",
        ),
    )


def _linear(tokens: int) -> float:
    """Return the bytes a layer keeps less what grows with the square, by differences of three lengths."""
    one, two, four = (_kept(times * tokens, "eager") for times in (1, 2, 4))
    square = (four - 3 * two + 2 * one) / 6
    return two - one - 3 * square


ROWS = {"B43": b43, "B47": b47}
