"""LoRA: a trainable low-rank update beside each frozen linear layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field

from paribus.techniques.base import Live, NoEffect, added_later
from paribus.techniques.tuning import pissa
from paribus.techniques.tuning.peft_tuner import (
    ADAPTER,
    PeftTuner,
    adapted,
    drop_by_example,
    has_conv1d,
    targets,
)

if TYPE_CHECKING:
    import torch
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel

_OBSERVED: Final = "lora"


class Lora(PeftTuner):
    """Add (lora_alpha / r) * B @ A to the chosen linear layers and train A and B alone.

    - `r`, `lora_alpha`: the rank of the update, and its scale.
    - `target_modules`: `all-linear` (every linear layer but the head) or a list of module names.
    - `lora_dropout`: the share of what enters A that is zeroed while training; each example draws for itself.
    - `use_rslora`: the scale is lora_alpha / sqrt(r) (Kalajdzievski 2023, arXiv:2312.03732).
    - `use_dora`: the norm of each output's weights trains beside the update, which then gives only their
      direction (Liu et al. 2024, arXiv:2402.09353, equation 5).
    - `init_lora_weights`: `default` draws A and sets B to zero, so that training starts at the base; `pissa`
      takes A and B from the r largest singular values of each weight matrix and leaves the base the rest
      (Meng et al. 2024, arXiv:2404.02948, equations 2 to 4); `both_random` draws both: the start is not the
      base.
    - `loraplus_lr_ratio`: the learning rate of B over that of A, which has the study's (LoRA+, Hayou et al.
      2024, arXiv:2402.12354).

    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
    """

    paper: ClassVar = "Hu et al. 2021, arXiv:2106.09685"

    kind: Literal["lora"] = "lora"
    r: int = Field(8, ge=1)
    lora_alpha: float = Field(16.0, gt=0)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    lora_dropout: float = added_later(0.0, as_if_absent=0.0, ge=0, lt=1)
    use_rslora: bool = added_later(False, as_if_absent=False)
    use_dora: bool = added_later(False, as_if_absent=False)
    init_lora_weights: Literal["default", "pissa", "both_random"] = added_later(
        "default", as_if_absent="default"
    )
    loraplus_lr_ratio: float = added_later(1.0, as_if_absent=1.0, gt=0)

    def canonical(self) -> dict[str, Any]:
        """The root of rank 1 says nothing."""
        whole = super().canonical()
        if self.r == 1:
            whole.pop("use_rslora", None)
        return whole

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """Wrap with B at zero, where DoRA's norms are those of the base; `draw` then sets A and B."""
        import peft

        return peft.LoraConfig(
            task_type=peft.TaskType.CAUSAL_LM,
            r=self.r,
            lora_alpha=self.lora_alpha,  # type: ignore[arg-type]  (any number works; peft declares int)
            lora_dropout=0.0,
            target_modules=targets(model, self.target_modules),
            bias="none",
            fan_in_fan_out=has_conv1d(model),
            use_rslora=self.use_rslora,
            use_dora=self.use_dora,
            init_lora_weights=True,
        )

    def draw(self, wrapped: PeftModel, live: Live) -> None:
        """Draw each layer's matrices by its name alone, as peft does, or take them from its weight."""
        import torch

        for path, layer in _layers(wrapped):
            torch.manual_seed(live.draw_seed("init", path))
            layer.reset_lora_parameters(ADAPTER, init_lora_weights=True)
            if self.init_lora_weights == "both_random":
                layer.lora_B[ADAPTER].reset_parameters()
            if self.init_lora_weights == "pissa":
                pissa.split(path, layer)
            if self.lora_dropout:
                drop_by_example(layer.lora_dropout, live, self.lora_dropout, "lora", path)
        if self.init_lora_weights == "pissa":
            wrapped.peft_config[ADAPTER].init_lora_weights = "pissa"  # type: ignore[attr-defined]  (a reader of the file splits again)
        live.observed[_OBSERVED] = self._start(wrapped)

    def _start(self, wrapped: PeftModel) -> dict[str, Any]:
        """Keep of the start what training will change."""
        norms = {path: m.weight.detach().clone() for path, m in _magnitudes(wrapped)}
        if self.init_lora_weights == "default":
            return {"norms": norms}
        return {"norms": norms, "size": self._update_over_weight(wrapped)}

    def _update_over_weight(self, wrapped: PeftModel) -> float:
        """Return the norm of all updates over that of the weights they are added to."""
        update = math.fsum(_squares(layer.get_delta_weight(ADAPTER)) for _, layer in _layers(wrapped))
        weight = math.fsum(_squares(self._weight(layer)) for _, layer in _layers(wrapped))
        return math.sqrt(update / weight)

    def _weight(self, layer: Any) -> torch.Tensor:
        """Return the weights that a layer had before it was wrapped."""
        return pissa.whole(layer)

    def learning_rate_factors(self, model: torch.nn.Module) -> dict[str, float]:
        """Return B's matrices with their ratio to A's learning rate."""
        if self.loraplus_lr_ratio == 1:
            return {}
        named = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
        return {name: self.loraplus_lr_ratio for name in named if f".lora_B.{ADAPTER}." in name}

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the scaling that layers really use, and what each chosen option left in the live model."""
        found: dict[str, Any] = {"scaling": _only(layer.scaling[ADAPTER] for _, layer in _layers(model))}
        started = live.observed[_OBSERVED]
        if self.lora_dropout:
            found |= _dropout_proof(model)
        if self.use_dora:
            found |= _dora_proof(model, started["norms"])
        if "size" in started:
            found["start_update_over_weight"] = started["size"]
        if self.init_lora_weights == "pissa":
            found["start_error_over_weight"] = max(pissa.start_error(layer) for _, layer in _layers(model))
        if self.loraplus_lr_ratio != 1:
            found["learning_rate_ratio"] = {
                str(self.loraplus_lr_ratio): len(self.learning_rate_factors(model))
            }
        return super().proof(model, live) | found

    def save(self, model: torch.nn.Module, folder: Path) -> None:
        """Write the adapter as peft does; of PiSSA also where A and B started: what the base lost."""
        super().save(model, folder)
        if self.init_lora_weights == "pissa":
            pissa.save(_layers(model), folder)

    def load(self, model: torch.nn.Module, folder: Path) -> None:
        """Put back an adapter that `save` wrote, and what the base had lost to it."""
        if self.init_lora_weights == "pissa":
            pissa.load(_layers(model), folder)
        super().load(model, folder)


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    return ((path, layer) for path, layer in adapted(model) if isinstance(layer, LoraLayer))


def _magnitudes(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for path, layer in _layers(model):
        if ADAPTER in layer.lora_magnitude_vector:
            yield path, layer.lora_magnitude_vector[ADAPTER]


def _squares(tensor: torch.Tensor) -> float:
    return float(tensor.detach().double().square().sum())


def _dropout_proof(model: torch.nn.Module) -> dict[str, Any]:
    """Return the share of inputs that was really dropped; those of padding are never counted."""
    places = [layer.lora_dropout[ADAPTER] for _, layer in _layers(model)]
    dropped, seen = (sum(float(getattr(place, name)) for place in places) for name in ("dropped", "seen"))
    if not dropped:
        raise NoEffect("lora_dropout", "nothing was dropped", "set lora_dropout: 0 or train for more steps")
    return {"inputs_dropped": dropped / seen}


def _dora_proof(model: torch.nn.Module, started: dict[str, Any]) -> dict[str, Any]:
    """Return how many norms there are and how far they moved, relative to where they started."""
    moves = []
    for path, magnitude in _magnitudes(model):
        start = started[path].cpu()
        moves.append(float((magnitude.weight.detach().cpu() - start).norm() / start.norm()))
    if not any(moves):
        raise NoEffect("use_dora", "no norm moved during training", "train for at least one step")
    return {"dora_norms": len(moves), "dora_norms_moved": sum(moves) / len(moves)}


def _only(values: Iterator[float]) -> float | list[float]:
    """Return the one value that all share, or the list of different ones."""
    different = sorted(set(values))
    return different[0] if len(different) == 1 else different
