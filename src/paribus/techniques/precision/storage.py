"""In which format the weights that train are kept between optimizer steps."""

from __future__ import annotations

from typing import Literal

from paribus.techniques.base import Technique


class Fp32Master(Technique):
    """Keep fp32 master weights: an optimizer step rounds nothing."""

    kind: Literal["fp32"] = "fp32"


class NoMaster(Technique):
    """Keep no master weights: what trains is stored in a low-precision format after every optimizer step."""

    kind: Literal["none"] = "none"
    format: Literal["bf16", "fp16"] = "bf16"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    optimizer_states: Literal["fp32", "same"] = "same"
