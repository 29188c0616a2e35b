"""IA3: keys, values and the inner layer of each feed-forward block are scaled by learned vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from pydantic import model_validator

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting
from paribus.techniques.tuning.peft_tuner import (
    ADAPTER,
    PeftTuner,
    adapted,
    has_conv1d,
    targets,
)

if TYPE_CHECKING:
    import torch
    from peft import PeftConfig
    from transformers import PreTrainedModel

Places = tuple[tuple[str, ...], tuple[str, ...]]
_GATED: Final[Places] = (("k_proj", "v_proj"), ("down_proj",))
_FUSED: Final[Places] = (("query_key_value",), ("dense_4h_to_h",))
PLACES: Final[dict[str, Places]] = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo2"), _GATED
    ),
    **dict.fromkeys(("smollm3", "granite", "stablelm", "starcoder"), _GATED),
    **dict.fromkeys(("gpt_neox", "bloom", "falcon"), _FUSED),
    "gpt2": (("c_attn",), ("mlp.c_proj",)),
    "opt": (("k_proj", "v_proj"), ("fc2",)),
    "phi": (("k_proj", "v_proj"), ("fc2",)),
    "gptj": (("k_proj", "v_proj"), ("fc_out",)),
}
"""By `model_type`: the layers that make keys and values, and those that end a feed-forward block."""


class Ia3(PeftTuner):
    """Multiply keys, values and what enters the last layer of each feed-forward block by learned vectors.

    The vectors start at one, so training starts at the base.
    - `target_modules`: `keys-values-feedforward` are the paper's places, known by architecture (where one
      layer makes queries too, as in GPT-2, these are scaled as well); or a list of module names.
    - `feedforward_modules`: those of the listed modules that are scaled on what enters them; all others are
      scaled on what they give.
    Source: Liu et al. 2022, arXiv:2205.05638, section 3.3.
    """

    paper: ClassVar = "Liu et al. 2022, arXiv:2205.05638"

    kind: Literal["ia3"] = "ia3"
    target_modules: Literal["keys-values-feedforward"] | tuple[str, ...] = "keys-values-feedforward"
    feedforward_modules: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _scaled(self) -> Self:
        named = () if isinstance(self.target_modules, str) else self.target_modules
        loose = sorted(set(self.feedforward_modules) - set(named))
        if loose:
            raise ValueError(f"feedforward_modules {', '.join(loose)} must be named in target_modules too")
        return self

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        if not isinstance(self.target_modules, str) or setting.model.model_type in PLACES:
            return None
        reason = (
            f"the layers that make keys and values in a {setting.model.model_type} model are not known here"
        )
        return Obstacle(reason, "name them: target_modules: [...], feedforward_modules: [...]")

    def places(self, model: PreTrainedModel) -> Places:
        """Return the layers scaled on what they give, and those scaled on what enters them."""
        if not isinstance(self.target_modules, str):
            inner = set(self.feedforward_modules)
            return tuple(sorted(set(self.target_modules) - inner)), tuple(sorted(inner))
        found = PLACES.get(model.config.model_type)
        if found is None:
            reason = f"the layers of a {model.config.model_type} model are not known here"
            raise NoEffect(self.kind, reason, "name them in target_modules and feedforward_modules")
        return found

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """The vectors start at one: nothing is drawn and training starts at the base."""
        import peft

        outer, inner = self.places(model)
        return peft.IA3Config(
            task_type=peft.TaskType.CAUSAL_LM,
            target_modules=targets(model, outer + inner),
            feedforward_modules=list(inner),
            fan_in_fan_out=has_conv1d(model),
            init_ia3_weights=True,
        )

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return how many layers are scaled at which end, and how far the vectors went from one."""
        vectors = [(layer.is_feedforward, layer.ia3_l[ADAPTER].detach()) for _, layer in adapted(model)]
        return super().proof(model, live) | {
            "layers_scaled": {
                "output": sum(not inner for inner, _ in vectors),
                "input": sum(i for i, _ in vectors),
            },
            "largest_change_of_a_scale": max(float((vector - 1).abs().max()) for _, vector in vectors),
        }
