"""LoRA: a trainable low-rank update beside each frozen linear layer."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from paribus.techniques.base import Technique


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
