"""Claims on number formats: what their bits can hold, computed bit by bit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from paribus.compare.claim import band
from paribus.compare.recompute import Computed, Statement, computed
from paribus.techniques.precision.formats import E4M3, E5M2
from paribus.techniques.precision.formats import Format as Rounded
from paribus.techniques.precision.scaling import scaled_round

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Bits:
    """A format by its bits: one sign, then exponent and fraction; `finite` has no infinities.

    A finite format, as E4M3 (Micikevicius et al. 2022, arXiv:2209.05433), gives its largest exponent to
    numbers too, and only the code of ones to NaN. The others are as in IEEE 754.
    """

    name: str
    exponent: int
    fraction: int
    finite: bool = False

    @property
    def total(self) -> int:
        """Return the number of bits."""
        return 1 + self.exponent + self.fraction

    @property
    def bias(self) -> int:
        """Return what is taken from the stored exponent."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def digits(self) -> float:
        """Return the decimal digits that the significand, with its hidden bit, is worth."""
        return (self.fraction + 1) * math.log10(2)

    @property
    def largest(self) -> float:
        """Return the largest finite value."""
        ones = (1 << (self.exponent + self.fraction)) - 1
        return self.value(ones - 1 if self.finite else ones - (1 << self.fraction))

    @property
    def least(self) -> float:
        """Return the least positive value."""
        return self.value(1)

    def value(self, code: int) -> float:
        """Read a code of bits as a number."""
        fraction = code & ((1 << self.fraction) - 1)
        exponent = (code >> self.fraction) & ((1 << self.exponent) - 1)
        sign = -1.0 if code >> (self.total - 1) else 1.0
        top, full = exponent == (1 << self.exponent) - 1, fraction == (1 << self.fraction) - 1
        if top and (full if self.finite else True):
            return math.nan if self.finite or fraction else sign * math.inf
        hidden = 1 if exponent else 0
        significand = hidden + fraction / (1 << self.fraction)
        return sign * significand * 2.0 ** (max(exponent, 1) - self.bias)

    def code(self, number: float) -> int:
        """Write a number that the format holds as a normal one."""
        mantissa, power = math.frexp(abs(number))  # in [0.5, 1)
        exponent = power - 1 + self.bias
        fraction = round((2 * mantissa - 1) * (1 << self.fraction))
        return (int(number < 0) << (self.total - 1)) | (exponent << self.fraction) | fraction


FP32, FP16, BF16 = Bits("FP32", 8, 23), Bits("FP16", 5, 10), Bits("BF16", 8, 7)
FP8_E4M3, FP8_E5M2 = Bits("FP8-E4M3", 4, 3, finite=True), Bits("FP8-E5M2", 5, 2)


def a56() -> Computed:
    """Write 6.5 in the bits of FP32."""
    code = FP32.code(6.5)
    sign, exponent, fraction = code >> 31, (code >> 23) & 0xFF, code & 0x7FFFFF
    whole, half = divmod(6.5, 1)
    written = f"{sign} {exponent:08b} {fraction:023b}"
    return computed(
        {
            "bits.sign": 1, "bits.exponent": FP32.exponent, "bits.fraction": FP32.fraction,
            "sign": sign, "power": exponent - FP32.bias, "bias": FP32.bias, "exponent": exponent,
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
    for form in (FP32, FP16, BF16, FP8_E4M3, FP8_E5M2):
        found = {
            "sign": 1, "exponent": form.exponent, "fraction": form.fraction, "bits": form.total,
            "largest": form.largest, "digits": form.digits,
        }  # fmt: skip
        numbers |= {f"{form.name}.{name}": value for name, value in found.items()}
    ranges = {form.name: form.largest for form in (FP32, FP16, BF16)}
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


def _eight_bits(form: Bits, listed: tuple[float, ...]) -> Computed:
    """Enumerate the 256 codes of a format; `listed` are the article's examples, those below 1 rounded."""
    finite = [value for code in range(256) if math.isfinite(value := form.value(code))]
    lost = [
        printed
        for printed in listed
        if not any(band(printed, None if 0 < printed < 1 else 0).contains(value) for value in finite)
    ]
    return computed(
        {
            "bits.sign": 1, "bits.exponent": form.exponent, "bits.fraction": form.fraction,
            "largest": max(finite), "least": min(value for value in finite if value > 0),
            "least.rounded": min(value for value in finite if value > 0), "digits": form.digits,
        },
        Statement(
            says="the values it lists are in the format",
            holds=not lost,
            found=f"{', '.join(map(str, lost))} is not" if lost else "",
        ),
    )  # fmt: skip


def a58() -> Computed:
    """Enumerate E4M3."""
    return _eight_bits(FP8_E4M3, (0, 0.002, 0.004, 1.0, 1.5, 2.0, 448))


def a60() -> Computed:
    """Enumerate E5M2."""
    return _eight_bits(FP8_E5M2, (0, 0.000015, 1.0, 2.0, 4.0, 8.0, 57344))


def bell(count: int) -> torch.Tensor:
    """Return the normal distribution's quantiles at equal steps: a Gaussian tensor without chance."""
    import torch

    quantile = NormalDist().inv_cdf
    return torch.tensor([quantile((index + 0.5) / count) for index in range(count)], dtype=torch.float32)


def rounding_error(values: torch.Tensor, form: Rounded) -> float:
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
