"""Only the last layers train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting
from paribus.techniques.tuning.tuner import OwnWeights

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_WAY_OUT: Final = "set tuning: full to train every layer, or a smaller tuning.layers"


class LastLayers(OwnWeights):
    """Train the last `layers` decoder layers and freeze all before them.

    `final_norm` trains the norm behind the last layer as well, `head` the matrix that gives the logits. Where
    a model ties this matrix to its input embeddings they are one parameter: with `head` the embeddings train
    too, and the proof says so. Source: Howard and Ruder 2018, arXiv:1801.06146, section 3.3.
    """

    paper: ClassVar = "Howard and Ruder 2018, arXiv:1801.06146"

    trains_base: ClassVar = True

    kind: Literal["last_layers"] = "last_layers"
    layers: int = Field(1, ge=1)
    head: bool = False
    final_norm: bool = True

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        if self.layers <= setting.model.layers:
            return None
        found = f"{setting.model.architecture} has {setting.model.layers}"
        return Obstacle(f"the last {self.layers} layers are to train and {found}", _WAY_OUT)

    def chosen(self, model: PreTrainedModel) -> set[str]:
        """Name the weights of the last layers, and of the norm and head where they train too."""
        chosen = {id(parameter) for parameter in self._parameters(model)}
        return {name for name, parameter in model.named_parameters() if id(parameter) in chosen}

    def _parameters(self, model: PreTrainedModel) -> Iterator[torch.nn.Parameter]:
        path, layers = decoder_layers(model)
        if self.layers > len(layers):
            raise NoEffect(self.kind, f"{type(model).__name__} has {len(layers)} layers", _WAY_OUT)
        for layer in layers[-self.layers :]:
            yield from layer.parameters()
        if self.final_norm:
            for name, module in model.get_submodule(path.rpartition(".")[0]).named_children():
                if "norm" in type(module).__name__.lower() and "embed" not in name:
                    yield from module.parameters()
        if self.head:
            head: Any = model.get_output_embeddings()
            yield from head.parameters()

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the evidence of every tuning, and whether a trained head is the input embeddings as well."""
        head: Any = model.get_output_embeddings()  # type: ignore[operator]
        tied = head is not None and head.weight is model.get_input_embeddings().weight  # type: ignore[operator]
        return super().proof(model, live) | ({"head_is_input_embeddings": tied} if self.head else {})


def decoder_layers(model: PreTrainedModel) -> tuple[str, list[torch.nn.Module]]:
    """Return where a model's decoder layers stand, and the layers in order; raises NoEffect where unknown."""
    import torch

    count = model.config.get_text_config().num_hidden_layers
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return path, list(module)
    raise NoEffect(
        "tuning", f"{type(model).__name__} has no list of {count} decoder layers", "set tuning: lora"
    )
