"""AdaLoRA: low-rank updates whose ranks are shared out among the layers while training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from paribus.techniques.base import Live, NoEffect
from paribus.techniques.tuning.peft_tuner import (
    ADAPTER,
    PeftTuner,
    adapted,
    has_conv1d,
    targets,
)

if TYPE_CHECKING:
    import torch
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel

_OBSERVED: Final = "adalora"
_ROUNDING: Final = 1e-9
"""So that a share of 0.29 of 100 steps is 29 of them."""


class AdaLora(PeftTuner):
    """Add (lora_alpha / init_r) * B @ diag(E) @ A to the chosen layers, and zero the least useful triplets.

    - `init_r`, `target_r`: the rank of every layer at the start, and of all on average at the end.
    - `lora_alpha`: the update is multiplied by lora_alpha / init_r, whatever rank is left.
    - `tinit`, `tfinal`: ranks stay as they are for `tinit` steps, then fall along a cubic curve, and are
      settled `tfinal` steps before the end. Optimizer steps, or where below 1 a share of the run's,
      rounded down.
    - `deltaT`: every so many steps the triplets of least importance are zeroed; in between they may grow.
    - `beta1`, `beta2`: importance is sensitivity times its uncertainty, each an average over steps that
      forgets at these rates (equations 9 to 11).
    - `orth_reg_weight`: times the mean of ||A A' - I|| and ||B' B - I||, this is added once to the loss of
      each optimizer step (equation 4; the norm is not squared, as in peft).
    - `target_modules`: `all-linear` (every linear layer but the head) or a list of module names.
    Source: Zhang et al. 2023, arXiv:2303.10512.
    """

    paper: ClassVar = "Zhang et al. 2023, arXiv:2303.10512"

    kind: Literal["adalora"] = "adalora"
    init_r: int = Field(12, ge=2)
    target_r: int = Field(8, ge=1)
    lora_alpha: float = Field(16.0, gt=0)
    tinit: float = Field(0.1, ge=0)
    tfinal: float = Field(0.3, ge=0)
    deltaT: int = Field(1, ge=1)
    beta1: float = Field(0.85, gt=0, lt=1)
    beta2: float = Field(0.85, gt=0, lt=1)
    orth_reg_weight: float = Field(0.5, ge=0)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.target_r >= self.init_r:
            raise ValueError(
                f"target_r {self.target_r} must be less than init_r {self.init_r}: ranks can only fall"
            )
        for name in ("tinit", "tfinal"):
            value = getattr(self, name)
            if value >= 1 and not value.is_integer():
                raise ValueError(f"{name} {value:g} is neither a share below 1 nor a whole number of steps")
        return self

    def schedule(self, steps: int) -> tuple[int, int]:
        """Return the steps before ranks fall and those after they are settled, of a run of that many steps.

        Raises NoEffect where no two steps are left between: one to measure importance, one to act on it.
        """
        first, last = (
            math.floor(v * steps + _ROUNDING) if v < 1 else int(v) for v in (self.tinit, self.tfinal)
        )
        if first + last >= steps or steps - last < 2:
            reason = f"no step is left for ranks to fall: {first} before, {last} after, {steps} in all"
            raise NoEffect(self.kind, reason, "train for more steps, or lower tinit and tfinal")
        return first, last

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        import peft

        first, last = self.schedule(live.steps)
        return peft.AdaLoraConfig(
            task_type=peft.TaskType.CAUSAL_LM,
            init_r=self.init_r,
            target_r=self.target_r,
            lora_alpha=self.lora_alpha,  # type: ignore[arg-type]  (any number works; peft declares int)
            lora_dropout=0.0,
            tinit=first,
            tfinal=last,
            total_step=live.steps,
            deltaT=self.deltaT,
            beta1=self.beta1,
            beta2=self.beta2,
            orth_reg_weight=self.orth_reg_weight,
            target_modules=targets(model, self.target_modules),
            bias="none",
            fan_in_fan_out=has_conv1d(model),
            init_lora_weights=True,
        )

    def draw(self, wrapped: PeftModel, live: Live) -> None:
        """Draw A and B by peft's own rule, keyed by the layer's name alone; E is zero."""
        import torch

        for path, layer in adapted(wrapped):
            torch.manual_seed(live.draw_seed("init", path))
            layer.reset_lora_parameters(ADAPTER)
        live.observed[_OBSERVED] = {"budgets": {}}

    def penalty(self, model: torch.nn.Module, live: Live) -> torch.Tensor | None:
        """Return the orthogonal regularisation: how far A's rows and B's columns are from orthonormal."""
        import torch

        if not self.orth_reg_weight:
            return None
        norms = []
        for _, layer in adapted(model):
            for matrix in (layer.lora_A[ADAPTER].T, layer.lora_B[ADAPTER]):
                products = matrix.T @ matrix
                norms.append((products - torch.eye(len(products)).to(products)).norm())
        return self.orth_reg_weight * torch.stack(norms).mean()

    def after_step(self, model: torch.nn.Module, live: Live) -> None:
        """Measure importance and share out ranks; `live.step` counts the steps before this one."""
        base: Any = model.base_model
        base.update_and_allocate(live.step + 1)
        pattern = base.peft_config[ADAPTER].rank_pattern
        if pattern and live.step + 1 <= live.steps - self.schedule(live.steps)[1]:
            budgets = live.observed[_OBSERVED]["budgets"]
            budgets[live.step + 1] = sum(map(sum, pattern.values()))

    def state(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the running averages of importance, the ranks given out, and those seen along the way."""
        base: Any = model.base_model
        allocator = base.rankallocator
        averages = {
            f"{kind}.{name}": tensor
            for kind in ("exp_avg_ipt", "exp_avg_unc")
            for name, tensor in getattr(allocator, kind).items()
        }
        pattern = base.peft_config[ADAPTER].rank_pattern
        return averages | {"rank_pattern": pattern, "budgets": dict(live.observed[_OBSERVED]["budgets"])}

    def restore(self, model: torch.nn.Module, live: Live, state: dict[str, Any]) -> None:
        import torch

        base: Any = model.base_model
        base.peft_config[ADAPTER].rank_pattern = state["rank_pattern"]
        seen = {int(step): ranks for step, ranks in state["budgets"].items()}
        live.observed[_OBSERVED]["budgets"] = seen
        placed = dict(base.model.named_parameters())
        for key, tensor in state.items():
            kind, _, name = key.partition(".")
            if name:
                averages = getattr(base.rankallocator, kind)
                averages[name] = tensor.to(placed[name])
                base.rankallocator.ipt.setdefault(name, torch.zeros_like(placed[name]))

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the rank of each layer, read from E, beside the rank all started from, and the budget.

        Raises NoEffect where no rank fell.
        """
        ranks = {path: int((layer.lora_E[ADAPTER] != 0).sum()) for path, layer in adapted(model)}
        total, start, goal = sum(ranks.values()), self.init_r * len(ranks), self.target_r * len(ranks)
        if total >= start:
            reason = f"no rank fell: the layers have {total} as at the start"
            raise NoEffect(self.kind, reason, "train for more steps, or lower tinit and tfinal")
        budgets = live.observed[_OBSERVED]["budgets"]
        return super().proof(model, live) | {
            "rank_before": self.init_r,
            "ranks": _by_kind(ranks),
            "total_rank": {"start": start, "end": total, "budget": goal},
            "steps_that_allocated": len(budgets),
            "scaling": self.lora_alpha / self.init_r,
        }

    def save(self, model: torch.nn.Module, folder: Path) -> None:
        """Write the adapter with its zeroed triplets, so that it goes on, and computes, exactly as it was."""
        config: Any = model.peft_config[ADAPTER]  # type: ignore[index]
        pattern, config.rank_pattern = config.rank_pattern, None
        try:
            super().save(model, folder)
        finally:
            config.rank_pattern = pattern


def _by_kind(ranks: dict[str, int]) -> dict[str, str]:
    """List the ranks of each kind of layer in the layers' order: `self_attn.q_proj: 12 8 3`."""
    found: dict[str, list[str]] = {}
    for path, rank in ranks.items():
        found.setdefault(_kind_of(path), []).append(str(rank))
    return {kind: " ".join(values) for kind, values in found.items()}


def _kind_of(path: str) -> str:
    """Return what a layer's path says after its number."""
    parts = path.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[numbers[-1] + 1 :] if numbers else parts)
