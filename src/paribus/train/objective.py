"""What a model learns: how rows become a batch, what counts as a target, and the loss of a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn.functional import cross_entropy

from paribus.train.data import NO_TARGET, Encoded, collate


class Objective(Protocol):
    """One task as the trainer sees it; `labels` and `logits` are those of a micro-batch."""

    def collate(self, rows: Sequence[Encoded], pad_token_id: int) -> dict[str, torch.Tensor]: ...
    def targets(self, labels: torch.Tensor) -> int: ...
    def summed(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor: ...


class NextToken:
    """Predict each target token from those before it."""

    def collate(self, rows: Sequence[Encoded], pad_token_id: int) -> dict[str, torch.Tensor]:
        """Pad rows on the right."""
        return collate(rows, pad_token_id)

    def targets(self, labels: torch.Tensor) -> int:
        """Count the targets; nothing stands before the first token."""
        return int((labels[:, 1:] != NO_TARGET).sum())

    def summed(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Sum the losses of all targets in nats, in fp32 at least.

        Logits of virtual tokens, which a prompt method puts in front, are left out.
        """
        targets = labels[:, 1:]
        wanted = targets != NO_TARGET
        chosen = logits[:, -labels.shape[1] : -1][wanted]
        chosen = chosen.to(torch.promote_types(chosen.dtype, torch.float32))
        return cross_entropy(chosen, targets[wanted], reduction="sum")
