"""The catalogue: plain unions of the settings a study can name."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import Field

from paribus.techniques.accumulation import Accumulation
from paribus.techniques.base import (
    Live,
    ModelFacts,
    NoEffect,
    Obstacle,
    Setting,
    Settings,
    Technique,
    added_later,
    sub_seed,
)
from paribus.techniques.dropout import Dropout
from paribus.techniques.memory import (
    EveryCheckpointing,
    LayerCheckpointing,
    NoCheckpointing,
    SequentialCheckpointing,
)
from paribus.techniques.noise import Noise
from paribus.techniques.precision.fp8 import Fp8
from paribus.techniques.precision.half import Bf16, Fp16
from paribus.techniques.precision.integers import Int4, Int8, Nf4
from paribus.techniques.precision.microscaling import Mxfp4, Mxfp6, Mxfp8, Nvfp4
from paribus.techniques.precision.plain import Fp32, Tf32
from paribus.techniques.precision.storage import Fp32Master, NoMaster
from paribus.techniques.precision.switched import Switched
from paribus.techniques.stress import NoStress, OutlierChannels
from paribus.techniques.tuning.adalora import AdaLora
from paribus.techniques.tuning.adapter import Adapter
from paribus.techniques.tuning.any_peft import AnyPeft
from paribus.techniques.tuning.bitfit import BitFit
from paribus.techniques.tuning.existing import Existing
from paribus.techniques.tuning.full import Full
from paribus.techniques.tuning.ia3 import Ia3
from paribus.techniques.tuning.last_layers import LastLayers
from paribus.techniques.tuning.lora import Lora
from paribus.techniques.tuning.norms import Norms
from paribus.techniques.tuning.orthogonal import Boft, Oft
from paribus.techniques.tuning.prompt import PrefixTuning, PromptTuning, PTuning
from paribus.techniques.tuning.qlora import QLora
from paribus.techniques.tuning.vera import Vera

Precision = Annotated[
    Fp32 | Tf32 | Bf16 | Fp16 | Fp8 | Mxfp8 | Mxfp6 | Mxfp4 | Nvfp4 | Int8 | Int4 | Nf4 | Switched,
    Field(discriminator="kind"),
]
MasterWeights = Annotated[Fp32Master | NoMaster, Field(discriminator="kind")]
Stress = Annotated[NoStress | OutlierChannels, Field(discriminator="kind")]
Tuning = Annotated[
    Full
    | Lora
    | AdaLora
    | Ia3
    | Oft
    | Boft
    | Vera
    | BitFit
    | Norms
    | PromptTuning
    | PrefixTuning
    | PTuning
    | Adapter
    | LastLayers
    | AnyPeft
    | Existing
    | QLora,
    Field(discriminator="kind"),
]
Checkpointing = Annotated[
    NoCheckpointing | LayerCheckpointing | EveryCheckpointing | SequentialCheckpointing,
    Field(discriminator="kind"),
]


def members(union: Any) -> tuple[type[Technique], ...]:
    """List the techniques of a union, in its order."""
    return get_args(get_args(union)[0])


AXES: dict[str, tuple[type[Technique], ...]] = {
    "gradient_accumulation_steps": (Accumulation,),
    "neftune_noise_alpha": (Noise,),
    "precision": members(Precision),
    "tuning": members(Tuning),
    "dropout": (Dropout,),
    "gradient_checkpointing": members(Checkpointing),
    "master_weights": members(MasterWeights),
    "stress": members(Stress),
}
"""The named axes, in the order in which their techniques are applied to settings and shown in tables."""

__all__ = [
    "AXES",
    "Accumulation",
    "AdaLora",
    "Adapter",
    "AnyPeft",
    "Bf16",
    "BitFit",
    "Boft",
    "Checkpointing",
    "Dropout",
    "EveryCheckpointing",
    "Existing",
    "Fp8",
    "Fp16",
    "Fp32",
    "Fp32Master",
    "Full",
    "Ia3",
    "Int4",
    "Int8",
    "LastLayers",
    "LayerCheckpointing",
    "Live",
    "Lora",
    "MasterWeights",
    "ModelFacts",
    "Mxfp4",
    "Mxfp6",
    "Mxfp8",
    "Nf4",
    "NoCheckpointing",
    "NoEffect",
    "NoMaster",
    "NoStress",
    "Noise",
    "Norms",
    "Nvfp4",
    "Obstacle",
    "Oft",
    "OutlierChannels",
    "PTuning",
    "Precision",
    "PrefixTuning",
    "PromptTuning",
    "QLora",
    "SequentialCheckpointing",
    "Setting",
    "Settings",
    "Stress",
    "Switched",
    "Technique",
    "Tf32",
    "Tuning",
    "Vera",
    "added_later",
    "sub_seed",
]
