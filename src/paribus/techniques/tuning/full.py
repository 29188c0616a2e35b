"""Full fine-tuning: every weight trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from paribus.techniques.tuning import weights
from paribus.techniques.tuning.tuner import OwnWeights

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class Full(OwnWeights):
    """Train every weight of the model."""

    trains_base: ClassVar = True

    kind: Literal["full"] = "full"

    def chosen(self, model: PreTrainedModel) -> set[str]:
        """Name every parameter."""
        return {name for name, _ in model.named_parameters()}

    def save(self, model: torch.nn.Module, folder: Path) -> None:
        """Write the model as transformers does, so that it loads like any other; one with a head by names."""
        if weights.heads(model):
            return super().save(model, folder)
        model.save_pretrained(folder)  # type: ignore[operator]

    def load(self, model: torch.nn.Module, folder: Path) -> None:
        """Put back a model that `save` wrote."""
        if weights.heads(model):
            return super().load(model, folder)
        stored = type(model).from_pretrained(folder, dtype=model.dtype, local_files_only=True)  # type: ignore[attr-defined]
        model.load_state_dict(stored.state_dict())
