"""Reading a format's codes, bit by bit, and writing numbers in them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paribus.techniques.precision.formats import NF4_CODES, Format

if TYPE_CHECKING:
    from collections.abc import Iterator


def bias(form: Format) -> int:
    """Return what is taken from the stored exponent."""
    return 2 ** (form.exponent_bits - 1) - 1


def fraction_bits(form: Format) -> int:
    """Return the stored bits of the significand: all but the sign and the exponent."""
    return form.bits - 1 - form.exponent_bits


def digits(form: Format) -> float:
    """Return the decimal digits that the significand, with its hidden bit, is worth."""
    return form.significand_bits * math.log10(2)


def value_of(form: Format, code: int) -> float:
    """Read a code of `form.bits` bits as a number.

    A code beyond that of the largest number is infinity where its fraction is 0 and NaN else: this is IEEE
    754-2019, 3.4, and also E4M3, where only the code of ones is left for NaN (arXiv:2209.05433, table 1). Of
    an integer, in two's complement, the code without a counterpart stands for no number.
    """
    if form.name == "nf4":
        return NF4_CODES[code]
    if not form.exponent_bits:
        number = code - (code >> (form.bits - 1) << form.bits)
        return float(number) if abs(number) <= form.largest else math.nan
    stored = fraction_bits(form)
    fraction, exponent = code & ((1 << stored) - 1), (code >> stored) & ((1 << form.exponent_bits) - 1)
    sign = -1.0 if code >> (form.bits - 1) else 1.0
    significand = fraction / (1 << stored) + (exponent > 0)
    magnitude = math.ldexp(significand, max(exponent, 1) - bias(form))
    if magnitude <= form.largest:
        return sign * magnitude
    return math.nan if fraction else sign * math.inf


def code_of(form: Format, number: float) -> int | None:
    """Write a number that the format holds as its code; None for what it does not hold."""
    if form.name == "nf4":
        return NF4_CODES.index(number) if number in NF4_CODES else None
    if not form.exponent_bits:
        whole = not math.isnan(number) and abs(number) <= form.largest and number == int(number)
        return int(number) % (1 << form.bits) if whole else None
    code = _magnitude(form, abs(number)) | ((math.copysign(1, number) < 0) << (form.bits - 1))
    found = value_of(form, code)
    return code if found == number or (math.isnan(found) and math.isnan(number)) else None


def _magnitude(form: Format, number: float) -> int:
    """Return the code of a magnitude, right where the format holds it and any other one else."""
    stored = fraction_bits(form)
    ones = (1 << (form.bits - 1)) - 1
    if math.isnan(number):
        return ones
    if math.isinf(number):
        return ones - ((1 << stored) - 1)
    if number < form.smallest_normal:
        return int(number / form.smallest_subnormal)
    significand, power = math.frexp(number)  # in [0.5, 1)
    return min(((power - 1 + bias(form)) << stored) + int((2 * significand - 1) * (1 << stored)), ones)


def values(form: Format) -> Iterator[float]:
    """Yield what each code stands for, in the order of codes."""
    return (value_of(form, code) for code in range(1 << form.bits))


def written(form: Format, code: int) -> str:
    """Write a code's bits: sign, exponent and fraction apart."""
    text = f"{code:0{form.bits}b}"
    if not form.exponent_bits:
        return text
    parts = text[0], text[1 : 1 + form.exponent_bits], text[1 + form.exponent_bits :]
    return " ".join(parts)
