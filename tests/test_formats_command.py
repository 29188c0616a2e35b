"""What `paribus formats` prints: the tables, and the fate of a number in every format."""

from __future__ import annotations

import io
import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from paribus import formats_view, number_formats
from paribus.cli import app
from paribus.errors import ParibusError
from paribus.techniques.precision import bits
from paribus.techniques.precision.formats import BLOCKED, FORMATS


def asked(*words: str) -> dict[str, Any]:
    ran = CliRunner().invoke(app, ["formats", *words, "--json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def fates(text: str) -> dict[str, tuple[Any, str]]:
    (row,) = asked(text)["values"]
    assert row["written"] == text
    return {one["format"]: (one["value"], one["fate"]) for one in row["held"]}


def test_the_tables_are_those_of_the_documents() -> None:
    """Bits of both documents' tables, and the ranges of the article's: lines 1448 to 1453."""
    document = asked()
    rows = {row["name"]: row for row in document["formats"]}
    assert list(rows) == list(FORMATS) and [row["name"] for row in document["blocked"]] == list(BLOCKED)
    printed = {
        "fp32": (32, 8, 24, 3.4028235e38, 7.22), "fp16": (16, 5, 11, 65504, 3.31),
        "bf16": (16, 8, 8, 3.3895314e38, 2.41), "e4m3": (8, 4, 4, 448, 1.2), "e5m2": (8, 5, 3, 57344, 0.9),
    }  # fmt: skip
    keys = ("bits", "exponent_bits", "significand_bits", "largest", "decimal_digits")
    for name, expected in printed.items():
        assert [rows[name][key] for key in keys] == pytest.approx(expected, rel=1e-2)
    assert rows["e4m3"]["smallest"] == 2**-9 and rows["e4m3"]["smallest_normal"] == 2**-6
    assert rows["nf4"]["relative_step"] is rows["int8"]["smallest_normal"] is None
    assert document["values"] == []


def test_fates_of_numbers_that_the_documents_speak_of() -> None:
    small, large, article = fates("1e-8"), fates("65520"), fates("-322")
    assert small["fp16"] == (0, "underflow") and small["bf16"][1] == "rounded"
    assert large["fp16"] == ("inf", "overflow") and large["bf16"] == (65536, "rounded")
    assert large["e5m2"] == (57344, "saturated") and large["e4m3"] == (448, "saturated")
    assert article["e4m3"] == article["e5m2"] == (-320, "rounded")
    assert fates("6.5")["fp32"] == (6.5, "exact")
    assert fates("0.003")["e4m3"] == (2**-8, "subnormal")


def test_what_is_no_finite_number_is_said() -> None:
    nan, infinite = fates("nan"), fates("-inf")
    assert nan["e4m3"] == ("nan", "exact") and nan["e2m1"] == nan["int8"] == (None, "not_held")
    assert infinite["bf16"] == ("-inf", "exact") and infinite["e5m2"] == (-57344, "saturated")


def test_bits_and_error_of_a_number() -> None:
    held = {one["format"]: one for one in asked("-6.5")["values"][0]["held"]}
    assert held["fp32"]["bits"] == "1 10000001 10100000000000000000000"
    assert held["fp32"]["hex"] == "0xc0d00000" and held["fp32"]["relative_error"] == 0
    assert held["int8"]["bits"] == "11111010" and held["int8"]["hex"] == "0xfa"
    assert held["int8"]["relative_error"] == pytest.approx(1 / 13)
    zero = {one["format"]: one for one in asked("0")["values"][0]["held"]}
    assert {(one["value"], one["relative_error"], one["fate"]) for one in zero.values()} == {
        (0, None, "exact")
    }


@given(number=st.floats())
def test_every_number_gets_an_answer(number: float) -> None:
    for form in FORMATS.values():
        found = number_formats.held(number, form)
        assert found.fate in number_formats.Fate.__args__
        assert (found.value is None) == (found.fate == "not held") == (found.code is None)
        assert json.dumps(found.to_json(), allow_nan=False)
        if found.fate == "exact" and not math.isnan(number):
            assert bits.value_of(form, found.code or 0) == number
        if found.error is not None and found.fate in ("rounded",) and form.exponent_bits:
            assert found.error <= 2.0**-form.significand_bits


@pytest.mark.parametrize("text", ["", "a half", "1,5", "0x1p3", "--jsn", "1e400", "-1e-400", "1/3"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ParibusError) as caught:
        number_formats.read(text)
    assert caught.value.way_out


@pytest.mark.parametrize(
    ("text", "number"), [("-1e-8", -1e-8), ("inf", math.inf), ("5e-324", 5e-324), ("-0", 0)]
)
def test_numbers_are_read_as_they_are_written(text: str, number: float) -> None:
    assert asked(text)["values"][0]["value"] == number_formats.plain(number)


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    document = number_formats.document(["-1.17549435e-38", "nan", "70000"])
    formats_view.show_formats(document, console)
    formats_view.show_values(document, console)
    text = console.export_text()
    assert "…" not in text
    for name in (*FORMATS, *BLOCKED):
        assert re.search(rf"^{name} ", text, re.MULTILINE)
    assert "3.4028e38" in text and "1 00000001 00000000000000000000000" in text


@pytest.mark.parametrize(
    ("value", "written"),
    [(3.4028235e38, "3.4e38"), (1.4e-45, "1.4e-45"), (1e-8, "1e-8"), (0.25, "0.25"), (0.0, "0")],
)
def test_numbers_are_written_short(value: float, written: str) -> None:
    assert formats_view.short(value, 2) == written
