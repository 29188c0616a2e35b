"""Claims of the chapter on attention in parts: in blocks on one card, and over cards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from paribus.compare.recompute import Computed, Statement, computed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class Sent(NamedTuple):
    """One message between cards: from, to, and which tensor."""

    source: int
    target: int
    what: str


CARDS: Final = 4


def _heads(tokens: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw queries, keys and values [heads, tokens, width] in fp64."""
    import torch

    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, CARDS, tokens, 8, generator=generator, dtype=torch.float64)
    return drawn[0], drawn[1], drawn[2]


def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend to all tokens at once."""
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def in_blocks(q: torch.Tensor, blocks: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Attend block by block with a running maximum and sum (Dao et al. 2022, arXiv:2205.14135, alg. 1)."""
    import torch

    top = torch.full((*q.shape[:-1], 1), -math.inf, dtype=q.dtype)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for k, v in blocks:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights, shrunk = (scores - higher).exp(), (top - higher).exp()
        total = total * shrunk + weights.sum(-1, keepdim=True)
        out, top = out * shrunk + weights @ v, higher
    return out / total


def ring(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, list[Sent]]:
    """Ring attention: blocks of keys and values go from card to card (Liu et al. 2023, arXiv:2310.01889)."""
    import torch

    queries, held = q.chunk(CARDS, 1), list(zip(k.chunk(CARDS, 1), v.chunk(CARDS, 1), strict=True))
    seen = [[held[card]] for card in range(CARDS)]
    sent: list[Sent] = []
    for _ in range(CARDS - 1):
        sent += [Sent(card, (card + 1) % CARDS, what) for card in range(CARDS) for what in "kv"]
        held = [held[card - 1] for card in range(CARDS)]
        for card in range(CARDS):
            seen[card].append(held[card])
    return torch.cat([in_blocks(queries[card], seen[card]) for card in range(CARDS)], 1), sent


def ulysses(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, list[Sent]]:
    """DeepSpeed-Ulysses: an all-to-all gives each card whole sequences of some heads (arXiv:2309.14509)."""
    import torch

    sent: list[Sent] = []

    def all_to_all(tensors: Sequence[torch.Tensor], split: int, join: int, what: str) -> list[torch.Tensor]:
        """Each card gives its part of a split to each other, which joins what it gets."""
        parts = [tensor.chunk(CARDS, split) for tensor in tensors]
        sent.extend(Sent(a, b, what) for a in range(CARDS) for b in range(CARDS) if a != b)
        return [torch.cat([parts[a][b] for a in range(CARDS)], join) for b in range(CARDS)]

    by_head = [all_to_all(one.chunk(CARDS, 1), 0, 1, what) for one, what in ((q, "q"), (k, "k"), (v, "v"))]
    attended = [whole(*(one[card] for one in by_head)) for card in range(CARDS)]
    return torch.cat(all_to_all(attended, 1, 0, "output"), 1), sent


def _in_a_ring(sent: Sequence[Sent]) -> bool:
    return all((one.target - one.source) % CARDS == 1 and one.what in ("k", "v") for one in sent)


def b46() -> Computed:
    """Run both ways of cutting a sequence over cards and look at who sends what to whom."""
    import torch

    heads = _heads()
    exact = whole(*heads)
    found = {name: way(*heads) for name, way in (("Ring Attention", ring), ("DeepSpeed-Ulysses", ulysses))}
    right = all(torch.allclose(out, exact, atol=1e-12) for out, _ in found.values())
    told = {
        name: f"{len(sent)} messages of {', '.join(sorted({one.what for one in sent}))} among {CARDS} cards"
        for name, (_, sent) in found.items()
    }
    return computed(
        {},
        Statement(
            says="both cut the sequence and still attend to all of it", holds=right, found="to 1e-12 in fp64"
        ),
        *(
            Statement(
                says=f"{name} passes keys and values round a ring", holds=_in_a_ring(sent), found=told[name]
            )
            for name, (_, sent) in found.items()
        ),
    )


def b48() -> Computed:
    """Attend in blocks and at once, and compare; what the hardware moves is no matter of arithmetic."""
    import torch

    q, k, v = _heads()
    blocks = list(zip(k.chunk(8, 1), v.chunk(8, 1), strict=True))
    out, exact = in_blocks(q, blocks), whole(q, k, v)
    return computed(
        {},
        Statement(
            says="softmax in blocks is mathematically the same",
            holds=torch.allclose(out, exact, atol=1e-12),
            found="8 blocks of keys and values agree with the whole to 1e-12 in fp64",
        ),
    )


ROWS = {"B46": b46, "B48": b48}
