"""BitFit: only the biases train."""

from __future__ import annotations

from typing import ClassVar, Literal

from paribus.techniques.base import Technique


class BitFit(Technique):
    """Train only the parameters named `*.bias`. Source: Ben Zaken et al. 2021, arXiv:2106.10199."""

    paper: ClassVar = "Ben Zaken et al. 2021, arXiv:2106.10199"

    kind: Literal["bitfit"] = "bitfit"
