"""BitFit: only the biases train."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Literal

from paribus.machine import Machine
from paribus.techniques.base import NoEffect, Obstacle, Setting
from paribus.techniques.tuning.tuner import OwnWeights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_WAY_OUT: Final = "set tuning: lora, or use a model with biases (GPT-2, OPT, Pythia)"


class BitFit(OwnWeights):
    """Train only the parameters named `*.bias`. Source: Ben Zaken et al. 2021, arXiv:2106.10199."""

    paper: ClassVar = "Ben Zaken et al. 2021, arXiv:2106.10199"

    kind: Literal["bitfit"] = "bitfit"

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        if setting.model.bias_parameters:
            return None
        return Obstacle(f"bitfit trains biases only and {setting.model.architecture} has none", _WAY_OUT)

    def chosen(self, model: PreTrainedModel) -> set[str]:
        """Name the biases."""
        biases = {name for name, _ in model.named_parameters() if name.endswith(".bias")}
        if not biases:
            raise NoEffect(self.kind, f"{type(model).__name__} has no biases to train", _WAY_OUT)
        return biases
