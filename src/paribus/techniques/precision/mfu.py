"""Model FLOPs utilisation: the share of a device's peak rate that training reached, on devices we know."""

from __future__ import annotations

import re
from typing import Final

PEAKS: Final[dict[str, dict[str, float]]] = {
    r"A100": {"fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312},
    r"H100 PCIe": {"fp32": 51, "tf32": 378, "fp16": 756, "bf16": 756, "fp8": 1513},
    r"H100 NVL|H200 NVL": {"fp32": 60, "tf32": 417.5, "fp16": 835.5, "bf16": 835.5, "fp8": 1670.5},
    r"H100|H200|GH200": {"fp32": 67, "tf32": 494.5, "fp16": 989.5, "bf16": 989.5, "fp8": 1979},
    r"B200": {"fp32": 75, "tf32": 1100, "fp16": 2250, "bf16": 2250, "fp8": 4500, "mxfp8": 4500},
    r"L40S": {"fp32": 91.6, "tf32": 183, "fp16": 362, "bf16": 362, "fp8": 733},
    r"RTX 4090(?! D| Laptop)": {"fp32": 82.6, "tf32": 82.6, "fp16": 165.2, "bf16": 165.2, "fp8": 330.3},
}
"""Dense peak rates in TFLOPS by a pattern of the device's name, the first that fits; of formats, fp32 is that
outside matrix units, and others accumulate in fp32. Half of what is printed for 2:4 sparsity. Sources:
NVIDIA's data sheets A100 (2021), H100 (2023; SXM, PCIe and NVL), H200 (2024), HGX B200 (2025) and L40S
(2023), and the whitepaper Ada GPU Architecture, appendix A (2022)."""


def peak(device: str, kind: str) -> float | None:
    """Return a device's dense peak in FLOPs a second in a format; None where either is unknown."""
    rates = next((rates for pattern, rates in PEAKS.items() if re.search(rf"\b(?:{pattern})\b", device)), {})
    return rates[kind] * 1e12 if kind in rates else None


def mfu(flops: float, seconds: float, device: str, kind: str) -> float | None:
    """Return the share of a device's peak in a format that so many FLOPs in so many seconds are.

    FLOPs are those that a model needs, nothing computed a second time (Chowdhery et al. 2022,
    arXiv:2204.02311, appendix B). None on a device, or in a format, that is not in the table.
    """
    most = peak(device, kind)
    return None if most is None or seconds <= 0 else flops / seconds / most
