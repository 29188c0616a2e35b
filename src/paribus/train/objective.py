"""What a model learns: how rows become a batch, what counts as a target, and the loss of a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import cross_entropy

from paribus.sources.blocks import Task
from paribus.train.data import NO_TARGET, Encoded, collate
from paribus.train.flattened import flattened


class Objective(Protocol):
    """One task as the trainer sees it; `labels` and `logits` are those of a micro-batch."""

    def collate(self, rows: Sequence[Encoded], pad_token_id: int) -> dict[str, torch.Tensor]: ...
    def targets(self, labels: torch.Tensor) -> int: ...
    def summed(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True)
class NextToken:
    """Predict each target token from those before it; `padding_free` lays rows end to end."""

    padding_free: bool = False

    def collate(self, rows: Sequence[Encoded], pad_token_id: int) -> dict[str, torch.Tensor]:
        """Pad rows on the right, or lay them end to end in one."""
        return flattened(rows) if self.padding_free else collate(rows, pad_token_id)

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


class OneOfClasses:
    """Name the class of each text; `labels` are the classes' numbers, one a row, and each row is a target."""

    def collate(self, rows: Sequence[Encoded], pad_token_id: int) -> dict[str, torch.Tensor]:
        """Pad rows on the right; the class stands at the last token of a row."""
        return collate(rows, pad_token_id) | {"labels": torch.tensor([row.labels[-1] for row in rows])}

    def targets(self, labels: torch.Tensor) -> int:
        """Count the rows."""
        return len(labels)

    def summed(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Sum the losses of all rows in nats, in fp32 at least; logits are rows x classes."""
        return cross_entropy(
            logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction="sum"
        )


def objective(task: Task, padding_free: bool = False) -> Objective:
    """Return what a task learns; only tokens are learnt without padding."""
    return OneOfClasses() if task == "classification" else NextToken(padding_free)
