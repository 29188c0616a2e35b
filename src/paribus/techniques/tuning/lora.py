"""LoRA: a trainable low-rank update beside each frozen linear layer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field

from paribus.errors import nearest
from paribus.techniques.base import Live, NoEffect, Technique
from paribus.techniques.tuning import weights

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel

_ADAPTER: Final = "default"


class Lora(Technique):
    """Add (lora_alpha / r) * B @ A to the chosen linear layers and train A and B alone.

    `target_modules` is `all-linear` (every linear layer but the head) or a list of module names.
    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
    """

    paper: ClassVar = "Hu et al. 2021, arXiv:2106.09685"

    kind: Literal["lora"] = "lora"
    r: int = Field(8, ge=1)
    lora_alpha: float = Field(16.0, gt=0)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"

    def canonical(self) -> dict[str, Any]:
        """The order in which modules are named says nothing."""
        whole = super().canonical()
        targets = whole["target_modules"]
        return whole | {"target_modules": targets if isinstance(targets, str) else sorted(set(targets))}

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Wrap the chosen layers; A is drawn by its layer's name, B is zero: training starts at the base."""
        import peft

        targets = self._targets(model)
        config = peft.LoraConfig(
            task_type=peft.TaskType.CAUSAL_LM,
            r=self.r,
            lora_alpha=self.lora_alpha,  # type: ignore[arg-type]  (any number works; peft declares int)
            lora_dropout=0.0,
            target_modules=targets,
            bias="none",
            fan_in_fan_out=_has_conv1d(model),
        )
        with weights.training_only(model, lambda name: False), _rewired(model):
            wrapped = _wrapped(model, config)
            _draw(wrapped, live)
            weights.remember(wrapped, live)
            yield wrapped

    def _targets(self, model: PreTrainedModel) -> str | list[str]:
        """Check that each name is that of a module, or the end of one; a name with no module is an error."""
        if self.target_modules == "all-linear":
            return "all-linear"
        modules = dict(model.named_modules())
        for target in self.target_modules:
            if not any(path == target or path.endswith(f".{target}") for path in modules):
                known = {path.rpartition(".")[2] for path, module in modules.items() if _is_linear(module)}
                reason = f"no module of {type(model).__name__} is called {target!r}"
                raise NoEffect("lora", reason, nearest(target, known))
        return list(self.target_modules)

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return how many layers carry an update, how many parameters train and how many moved."""
        from peft.tuners.lora import LoraLayer

        layers = sum(isinstance(module, LoraLayer) for module in model.modules())
        return {"layers_adapted": layers, **weights.movement(self.kind, model, live)}


def _wrapped(model: PreTrainedModel, config: LoraConfig) -> PeftModel:
    """Wrap a model; a target that is no linear layer is told as peft tells it."""
    import peft

    with warnings.catch_warnings():
        # peft 0.21 asks transformers 5.24 for an attribute under its old name
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        try:
            return peft.get_peft_model(model, config, adapter_name=_ADAPTER)
        except ValueError as error:
            way_out = "name linear layers, or set target_modules: all-linear"
            raise NoEffect("lora", str(error), way_out) from error


def _is_linear(module: torch.nn.Module) -> bool:
    import torch
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, torch.nn.Linear | Conv1D)


def _has_conv1d(model: torch.nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return any(isinstance(module, Conv1D) for module in model.modules())


def _draw(wrapped: PeftModel, live: Live) -> None:
    """Draw each layer's matrices again, by peft's own rule but keyed by the layer's name alone."""
    import torch
    from peft.tuners.lora import LoraLayer

    with torch.random.fork_rng(devices=[]):
        for path, module in wrapped.get_base_model().named_modules():
            if isinstance(module, LoraLayer):
                torch.manual_seed(live.draw_seed("init", path))
                module.reset_lora_parameters(_ADAPTER, init_lora_weights=True)


@contextmanager
def _rewired(model: torch.nn.Module) -> Iterator[None]:
    """Put every submodule back in its place afterwards, also when wrapping stopped half-way."""
    places = [(parent, dict(parent._modules)) for parent in model.modules()]
    attributes = set(vars(model))
    try:
        yield
    finally:
        for parent, children in places:
            parent._modules.clear()
            parent._modules.update(children)
        for name in set(vars(model)) - attributes:
            delattr(model, name)
