"""Full fine-tuning: every weight trains."""

from __future__ import annotations

from typing import Literal

from paribus.techniques.base import Technique


class Full(Technique):
    """Train every weight of the model."""

    kind: Literal["full"] = "full"
