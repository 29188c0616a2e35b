"""Full fine-tuning: every weight trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from paribus.techniques.base import Live
from paribus.techniques.tuning import weights
from paribus.techniques.tuning.tuner import Tuner

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class Full(Tuner):
    """Train every weight of the model."""

    kind: Literal["full"] = "full"

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Let every parameter train."""
        with weights.training_only(model, lambda name: True):
            weights.remember(model, live)
            yield model
