"""Number formats as a reader meets them: what each holds, and what it makes of a number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from paribus.errors import ParibusError
from paribus.techniques.precision import bits
from paribus.techniques.precision.formats import BLOCKED, FORMATS, Blocked, Format, round_to

Fate = Literal["exact", "rounded", "subnormal", "underflow", "overflow", "saturated", "not held"]
"""What becomes of a number: held, rounded, rounded below the least normal number and so with fewer digits,
zero, infinite, or cut to the largest. A NaN is not held by a format that has no code for it.
"""


@dataclass(frozen=True)
class Held:
    """What a format makes of a number: the one it holds, the relative error, and its bits."""

    form: Format
    number: float
    value: float | None
    fate: Fate

    @property
    def error(self) -> float | None:
        """Return the relative error; None of zero, and where either side is not finite."""
        if self.value is None or not self.number or not math.isfinite(self.number - self.value):
            return None
        return abs(self.value / self.number - 1)

    @property
    def code(self) -> int | None:
        """Return the code that stands for the value."""
        return None if self.value is None else bits.code_of(self.form, self.value)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        code, digits = self.code, -(-self.form.bits // 4)
        return {
            "format": self.form.name,
            "value": None if self.value is None else plain(self.value),
            "relative_error": self.error,
            "fate": self.fate.replace(" ", "_"),
            "bits": None if code is None else bits.written(self.form, code),
            "hex": None if code is None else f"0x{code:0{digits}x}",
        }


def read(text: str) -> float:
    """Read a number that a user wrote, `nan` and `inf` too; raises ParibusError for what is none."""
    try:
        exact, number = Decimal(text), float(text)
    except (InvalidOperation, ValueError):
        raise ParibusError(
            f"{text!r} is not a number", way_out="Write it as 0.1, -6.5, 1e-8, inf or nan."
        ) from None
    if exact.is_finite() and (math.isinf(number) or (not number and exact)):
        raise ParibusError(
            f"{text} is beyond what 64 bits hold", way_out="Give a magnitude from 5e-324 to 1.7e308, or inf."
        )
    return number


def held(number: float, form: Format) -> Held:
    """Round a number to a format and say what became of it."""
    import torch

    value = round_to(torch.tensor(number, dtype=torch.float64), form).item()
    if math.isnan(number) and bits.code_of(form, value) is None:
        return Held(form, number, None, "not held")
    value = value if form.exponent_bits else value + 0.0  # they have one zero
    return Held(form, number, value, _fate(number, value, form))


def _fate(number: float, value: float, form: Format) -> Fate:
    if value == number or math.isnan(number):
        return "exact"
    if math.isinf(value):
        return "overflow"
    if abs(number) > form.largest and abs(value) == form.largest and form.saturates:
        return "saturated"
    if value == 0:
        return "underflow"
    tiny = form.exponent_bits > 0 and abs(value) < form.smallest_normal
    return "subnormal" if tiny else "rounded"


def document(texts: Iterable[str]) -> dict[str, Any]:
    """Return the tables of formats, and what each format makes of every number that was given."""
    numbers = [(text, read(text)) for text in texts]
    return {
        "formats": [facts(form) for form in FORMATS.values()],
        "blocked": [_blocked(form) for form in BLOCKED.values()],
        "values": [
            {
                "written": text,
                "value": plain(number),
                "held": [held(number, form).to_json() for form in FORMATS.values()],
            }
            for text, number in numbers
        ],
    }


def facts(form: Format) -> dict[str, Any]:
    """Return what a format's bits reach; None for what integers and tables of codes have not."""
    floating = form.exponent_bits > 0
    return {
        "name": form.name,
        "bits": form.bits,
        "exponent_bits": form.exponent_bits,
        "significand_bits": form.significand_bits or None,
        "largest": form.largest,
        "smallest_normal": form.smallest_normal if floating else None,
        "smallest": form.smallest_subnormal,
        "relative_step": form.relative_step,
        "decimal_digits": bits.digits(form) or None,
        "beyond_largest": "saturates" if form.saturates else "infinite",
        "torch": form.dtype,
    }


def _blocked(form: Blocked) -> dict[str, Any]:
    return {
        "name": form.name,
        "element": form.element.name,
        "block": form.block,
        "scale": form.scale,
        "bits_per_value": form.bits_per_value,
    }


def plain(number: float) -> float | str:
    """Return a number as JSON can say it: infinities and NaN as words."""
    return number if math.isfinite(number) else str(number)
