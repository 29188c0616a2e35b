"""How likely a model in memory finds continuations, the same whatever the batches it reads them in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch

from paribus.score.heldout import LOGITS, TOKENS

ROWS: Final = 64
"""Rows in a batch at most."""

Ids = tuple[int, ...]


def likelihoods(
    model: Any, requests: Sequence[tuple[Ids, Sequence[int]]], rows: int = ROWS
) -> list[tuple[float, bool]]:
    """Return each continuation's log-likelihood in nats, and whether each token of it is the likeliest one.

    A request is what the model reads, which ends before the continuation's last token, and the continuation.
    Those that read the same share one pass. Logits are normalised in fp32 and summed in fp64.
    """
    sharing: dict[Ids, list[int]] = defaultdict(list)
    for index, (ids, _) in enumerate(requests):
        sharing[ids].append(index)
    found: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
    for batch in _batches(model, sharing, rows):
        for ids, logits in zip(batch, _logits(model, batch), strict=True):
            for index in sharing[ids]:
                continuation = requests[index][1]
                found[index] = _likelihood(logits[len(ids) - len(continuation) : len(ids)], continuation)
    return found


def _batches(model: Any, inputs: Iterable[Ids], rows: int) -> Iterator[list[Ids]]:
    """Cut inputs, longest first, into batches of bounded size."""
    order = sorted(inputs, key=lambda ids: -len(ids))
    budget = max(1, min(TOKENS, LOGITS // model.config.get_text_config().vocab_size))
    while order:
        count = max(1, min(rows, budget // len(order[0])))
        yield order[:count]
        order = order[count:]


def _logits(model: Any, batch: Sequence[Ids]) -> torch.Tensor:
    """Return logits [row, token, vocabulary] of rows padded on the right, virtual tokens left out."""
    device, longest = next(model.parameters()).device, max(map(len, batch))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in batch], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch], device=device)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, -longest:]


def _likelihood(logits: torch.Tensor, continuation: Sequence[int]) -> tuple[float, bool]:
    """Score a continuation by the logits [token, vocabulary] that predict it."""
    targets = torch.tensor(continuation, device=logits.device)
    shares = logits.float().log_softmax(-1)
    value = shares.gather(1, targets.unsqueeze(1)).double().sum().item()
    return value, bool((shares.argmax(-1) == targets).all())
