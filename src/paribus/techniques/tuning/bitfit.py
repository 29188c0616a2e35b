"""BitFit: only the biases train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting
from paribus.techniques.tuning import weights
from paribus.techniques.tuning.tuner import Tuner

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_WAY_OUT: Final = "set tuning: lora, or use a model with biases (GPT-2, OPT, Pythia)"


class BitFit(Tuner):
    """Train only the parameters named `*.bias`. Source: Ben Zaken et al. 2021, arXiv:2106.10199."""

    paper: ClassVar = "Ben Zaken et al. 2021, arXiv:2106.10199"

    kind: Literal["bitfit"] = "bitfit"

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        if setting.model.bias_parameters:
            return None
        return Obstacle(f"bitfit trains biases only and {setting.model.architecture} has none", _WAY_OUT)

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Let the biases train and freeze all else."""
        with weights.training_only(model, lambda name: name.endswith(".bias")):
            if not weights.trainable(model):
                raise NoEffect(self.kind, f"{type(model).__name__} has no biases to train", _WAY_OUT)
            weights.remember(model, live)
            yield model
