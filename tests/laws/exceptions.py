"""Where a law does not hold for a reason in the mathematics: named, measured, and bounded both ways.

A case that is named here must break its law by a size within the bounds; one that keeps the law, or breaks it
by more, is a failure. Every other break of a law is a failure too.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch

EVERY = ("llama", "gpt2", "qwen2", "mistral", "opt", "gemma")


@dataclass(frozen=True)
class Named:
    """One exception: the cases it is of (a pattern of their names), its reason, and the sizes it may have."""

    cases: str
    law: str
    least: float
    most: float
    reason: str
    models: tuple[str, ...] = EVERY

    def covers(self, case: str, law: str, model: str) -> bool:
        return law == self.law and model in self.models and fnmatch(case, self.cases)


SCALE = (
    "FP8 with a scale for each tensor divides a micro-batch by the largest magnitude in it: who shares a batch "
    "decides how each of its numbers is rounded."
)

EXCEPTIONS: tuple[Named, ...] = (
    Named("fp8 emulated", "split", 1e-5, 0.5, SCALE),
    Named("fp8 emulated", "gradient", 1e-3, 1.0, SCALE),
    Named("fp8 emulated", "padding", 1e-7, 0.05, SCALE),
)


def exception(case: str, law: str, model: str) -> Named | None:
    """Return the exception of a case under a law on a model, if there is one."""
    return next((one for one in EXCEPTIONS if one.covers(case, law, model)), None)
