"""Gradient checkpointing: activations are computed again in the backward pass instead of being kept."""

from __future__ import annotations

from typing import ClassVar, Literal

from paribus.techniques.base import Technique


class NoCheckpointing(Technique):
    """Keep every activation for the backward pass."""

    kind: Literal["none"] = "none"


class LayerCheckpointing(Technique):
    """Keep the input of every layer alone and compute the rest again. Source: Chen et al. 2016."""

    paper: ClassVar = "Chen et al. 2016, arXiv:1604.06174"

    kind: Literal["layers"] = "layers"
