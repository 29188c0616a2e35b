"""LoRA: a trainable low-rank update beside each frozen linear layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from paribus.techniques.base import Live
from paribus.techniques.tuning.peft_tuner import ADAPTER, PeftTuner, has_conv1d, targets

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel


class Lora(PeftTuner):
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
        chosen = whole["target_modules"]
        return whole | {"target_modules": chosen if isinstance(chosen, str) else sorted(set(chosen))}

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """A is drawn by its layer's name, B is zero: training starts at the base."""
        import peft

        return peft.LoraConfig(
            task_type=peft.TaskType.CAUSAL_LM,
            r=self.r,
            lora_alpha=self.lora_alpha,  # type: ignore[arg-type]  (any number works; peft declares int)
            lora_dropout=0.0,
            target_modules=targets(model, self.target_modules),
            bias="none",
            fan_in_fan_out=has_conv1d(model),
        )

    def draw(self, wrapped: PeftModel, live: Live) -> None:
        """Draw each layer's matrices by peft's own rule, keyed by the layer's name alone."""
        import torch
        from peft.tuners.lora import LoraLayer

        for path, module in wrapped.get_base_model().named_modules():
            if isinstance(module, LoraLayer):
                torch.manual_seed(live.draw_seed("init", path))
                module.reset_lora_parameters(ADAPTER, init_lora_weights=True)
