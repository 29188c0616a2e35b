"""Stress: a model whose function is the same and whose numbers are harder to round."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paribus.techniques.base import Technique


class NoStress(Technique):
    """Leave the model's channels at the size they have."""

    kind: Literal["none"] = "none"


class OutlierChannels(Technique):
    """Make a few channels of every normalised layer input larger and the weights that read them smaller."""

    kind: Literal["outlier_channels"] = "outlier_channels"
    channels: int = Field(4, ge=1)
    factor: float = Field(64.0, gt=1)
