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

ROUNDED = (
    "Splits sum in another order, and a coarse format turns a last digit that differs into a whole step of its "
    "own; most micro-batches meet none, so the least size is zero."
)
PADDED = "L is the padded length of the micro-batch, so who shares a batch decides how loud the noise is."
MEANS = "Each micro-batch counts the same, however few targets it has: the fault that this setting shows."
SUMS = (
    "Every micro-batch's gradient and the running sum are rounded to bfloat16: more of them, more roundings."
)
PACKED = "A 4-bit base keeps two weights in a byte: the proof counts weights where the law counts elements."
FAR = (
    "Both matrices random, the start is far from the base (BA is several times the weights) and fp32 loses "
    "digits; in fp64 the same splits agree within 1e-8."
)

EXCEPTIONS: tuple[Named, ...] = (
    Named("fp8 emulated", "split", 1e-5, 0.5, SCALE),
    Named("fp8 emulated", "gradient", 1e-3, 1.0, SCALE),
    Named("fp8 emulated", "padding", 1e-7, 0.05, SCALE),
    Named("fp8 emulated none", "gradient", 0.0, 0.05, ROUNDED),
    Named("fp16 emulated", "gradient", 0.0, 0.01, ROUNDED),
    Named("bf16 emulated", "gradient", 0.0, 0.01, ROUNDED),
    Named("noise padded length 5", "split", 1e-5, 0.5, PADDED),
    Named("noise padded length 5", "gradient", 1e-3, 1.0, PADDED),
    Named("noise padded length 5", "padding", 1e-7, 0.5, PADDED),
    Named("accumulation 4 micro_batches*", "split", 1e-5, 0.5, MEANS),
    Named("accumulation 4 micro_batches*", "gradient", 1e-2, 2.0, MEANS),
    Named("accumulation 4 bfloat16", "split", 1e-7, 0.1, SUMS),
    Named("accumulation 4 bfloat16", "gradient", 1e-4, 0.05, SUMS),
    *(
        Named(case, "frozen", 1.0, 1.0, PACKED)
        for case in ("qlora", "qlora r=4", "qlora r=4 fp4*", "qlora r=4 int4")
    ),
    Named("lora r=4 both_random", "gradient", 0.0, 1e-3, FAR),
)


def exception(case: str, law: str, model: str) -> Named | None:
    """Return the exception of a case under a law on a model, if there is one."""
    return next((one for one in EXCEPTIONS if one.covers(case, law, model)), None)
