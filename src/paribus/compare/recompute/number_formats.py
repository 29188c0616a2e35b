"""Claims on number formats: what their bits can hold, computed bit by bit."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from paribus.compare.claim import band
from paribus.compare.recompute import Computed, Statement, computed
from paribus.techniques.precision import bits
from paribus.techniques.precision.formats import BF16, E4M3, E5M2, FP16, FP32, Format
from paribus.techniques.precision.scaling import scaled_round

if TYPE_CHECKING:
    import torch


FORMS: Final = {"FP32": FP32, "FP16": FP16, "BF16": BF16, "FP8-E4M3": E4M3, "FP8-E5M2": E5M2}
"""The formats of the article's table under its own names."""


def a56() -> Computed:
    """Write 6.5 in the bits of FP32."""
    code = bits.code_of(FP32, 6.5) or 0
    sign, exponent = code >> 31, (code >> 23) & 0xFF
    whole, half = divmod(6.5, 1)
    written = bits.written(FP32, code)
    return computed(
        {
            "bits.sign": 1, "bits.exponent": FP32.exponent_bits, "bits.fraction": bits.fraction_bits(FP32),
            "sign": sign, "power": exponent - bits.bias(FP32), "bias": bits.bias(FP32), "exponent": exponent,
        },
        Statement(says="6.5 is 110.1 in binary", holds=f"{int(whole):b}.{int(2 * half):b}" == "110.1"),
        Statement(
            says="its FP32 bits are 0 10000001 10100000000000000000000",
            holds=written == "0 10000001 10100000000000000000000",
            found="" if written == "0 10000001 10100000000000000000000" else written,
        ),
    )  # fmt: skip


def a57() -> Computed:
    """Count bits, range and digits of five formats."""
    numbers: dict[str, float] = {}
    for title, form in FORMS.items():
        found = {
            "sign": 1, "exponent": form.exponent_bits, "fraction": bits.fraction_bits(form),
            "bits": form.bits, "largest": form.largest, "digits": bits.digits(form),
        }  # fmt: skip
        numbers |= {f"{title}.{name}": value for name, value in found.items()}
    ranges = {title: FORMS[title].largest for title in ("FP32", "FP16", "BF16")}
    printed = {"FP32": 3.4e38, "FP16": 6.5e4, "BF16": 3.4e38}
    cut = [name for name, value in ranges.items() if f"{value:.1e}" != f"{printed[name]:.1e}"]
    return computed(
        numbers,
        Statement(
            says="bits, digits and the ranges of FP8 are right, and the other ranges within 1 %",
            holds=all(math.isclose(value, printed[name], rel_tol=0.01) for name, value in ranges.items()),
            found="; ".join(f"{name}'s {ranges[name]:g} is cut off, not rounded" for name in cut),
        ),
    )


def _eight_bits(form: Format, listed: tuple[float, ...]) -> Computed:
    """Enumerate the 256 codes of a format; `listed` are the article's examples, those below 1 rounded."""
    finite = [value for value in bits.values(form) if math.isfinite(value)]
    lost = [
        printed
        for printed in listed
        if not any(band(printed, None if 0 < printed < 1 else 0).contains(value) for value in finite)
    ]
    return computed(
        {
            "bits.sign": 1, "bits.exponent": form.exponent_bits, "bits.fraction": bits.fraction_bits(form),
            "largest": max(finite), "least": min(value for value in finite if value > 0),
            "least.rounded": min(value for value in finite if value > 0), "digits": bits.digits(form),
        },
        Statement(
            says="the values it lists are in the format",
            holds=not lost,
            found=f"{', '.join(map(str, lost))} is not" if lost else "",
        ),
    )  # fmt: skip


def a58() -> Computed:
    """Enumerate E4M3."""
    return _eight_bits(E4M3, (0, 0.002, 0.004, 1.0, 1.5, 2.0, 448))


def a60() -> Computed:
    """Enumerate E5M2."""
    return _eight_bits(E5M2, (0, 0.000015, 1.0, 2.0, 4.0, 8.0, 57344))


def bell(count: int) -> torch.Tensor:
    """Return the normal distribution's quantiles at equal steps: a Gaussian tensor without chance."""
    import torch

    quantile = NormalDist().inv_cdf
    return torch.tensor([quantile((index + 0.5) / count) for index in range(count)], dtype=torch.float32)


def rounding_error(values: torch.Tensor, form: Format) -> float:
    """Return the norm of what rounding changes over that of the tensor, scaled by its largest value."""
    lost = scaled_round(values, form, "tensor").restored().double() - values.double()
    return (lost.norm() / values.double().norm()).item()


def a85() -> Computed:
    """Round a Gaussian tensor to both 8-bit formats, with the scale of the article's listing."""
    errors = {form.name: 100 * rounding_error(bell(4096), form) for form in (E4M3, E5M2)}
    return computed(
        {
            "fp8.error": (max(errors.values()), "%"),
            "error of E4M3": (errors["e4m3"], "%"),
            "error of E5M2": (errors["e5m2"], "%"),
        },
        Statement(
            says="the formats it trains with stay below its limit",
            holds=max(errors.values()) < 5,
            found=f"E4M3 rounds Gaussian numbers by {errors['e4m3']:.2f} %, E5M2, its choice for weights, by "
            f"{errors['e5m2']:.2f} %",
        ),
    )


ROWS = {"A56": a56, "A57": a57, "A58": a58, "A60": a60, "A85": a85}
