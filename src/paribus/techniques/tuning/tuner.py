"""What every way of tuning is: a technique that says which weights train, and can save and put them back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paribus.techniques.base import Live, Technique
from paribus.techniques.tuning import weights

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

TRAINED = "trained.safetensors"


class Tuner(Technique):
    """One way of tuning a model; `save`, `load` and `merged` are asked while it is applied."""

    trains_base: ClassVar[bool] = False
    """Whether weights of the base itself train, so that it can start from random ones."""

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return which parameters train, how many moved, and that no frozen one did."""
        return weights.movement(self.label, model, live)

    def save(self, model: torch.nn.Module, folder: Path) -> None:
        """Write what was trained to a folder: every trainable parameter by its name, as safetensors."""
        weights.save(model, folder / TRAINED)

    def load(self, model: torch.nn.Module, folder: Path) -> None:
        """Put back what `save` wrote, into a model to which an equal tuning is applied.

        Raises ValueError where names or shapes differ.
        """
        weights.load(model, folder / TRAINED)

    def merged(self, model: torch.nn.Module) -> torch.nn.Module | None:
        """Return the model with its update inside the base's own weights; None where it cannot be merged.

        The base's weights are changed in place, so this ends the life of a model.
        """
        return model


class OwnWeights(Tuner):
    """A way of tuning that adds nothing to a model: it names which of the model's own weights train."""

    @abstractmethod
    def chosen(self, model: PreTrainedModel) -> set[str]:
        """Return the names of the parameters that train; raises NoEffect where there are none."""

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Let the chosen parameters train, freeze all else, and put back afterwards what trained before."""
        with weights.training_only(model, self.chosen(model).__contains__):
            weights.remember(model, live)
            yield model
