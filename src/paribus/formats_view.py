"""Number formats on a terminal."""

from __future__ import annotations

import re
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paribus.screen import plain_table

FATES: Final = {
    "exact": "dim", "rounded": "", "subnormal": "yellow", "underflow": "red", "saturated": "yellow",
    "overflow": "red", "not_held": "dim",
}  # fmt: skip
_COLUMNS: Final = {
    "bits": "bits", "exponent\nbits": "exponent_bits", "significand\nbits": "significand_bits",
    "\nlargest": "largest", "smallest\nnormal": "smallest_normal", "\nsmallest": "smallest",
    "relative\nstep": "relative_step", "decimal\ndigits": "decimal_digits",
}  # fmt: skip
_WIDE: Final = 86
"""Columns of a terminal from which on the table has room between its own."""
_SCALES: Final = {"e8m0": "a power of two (e8m0)", "e4m3": "an e4m3, times an fp32 of the tensor"}


def show_formats(document: dict[str, Any], console: Console) -> None:
    """Print the tables of formats."""
    table = _table("Number formats", "\nformat", 2 if console.width >= _WIDE else 1)
    for header in _COLUMNS:
        table.add_column(header if "\n" in header else f"\n{header}", justify="right", no_wrap=True)
    for row in document["formats"]:
        table.add_row(row["name"], *(_fact(key, row[key]) for key in _COLUMNS.values()))
    console.print(table, highlight=False)
    console.print(
        "\n[dim]The significand counts the hidden bit. A number beyond the largest becomes infinite in fp32, "
        "tf32, fp16 and bf16, and the largest in the others.[/]\n",
        highlight=False,
    )
    blocked = _table("Formats of blocks that share a scale", "format")
    for header in ("elements", "block", "scale", "bits a value"):
        blocked.add_column(header, justify="right" if header in ("block", "bits a value") else "left")
    for row in document["blocked"]:
        scale = _SCALES[row["scale"]]
        blocked.add_row(row["name"], row["element"], str(row["block"]), scale, f"{row['bits_per_value']:g}")
    console.print(blocked, highlight=False)
    console.print("\n[dim]What a format makes of a number: paribus formats 0.1 1e-8[/]")


def show_values(document: dict[str, Any], console: Console) -> None:
    """Print, for each number, what every format makes of it."""
    for row in document["values"]:
        table = _table(escape(row["written"]), "format")
        table.add_column("holds", justify="right", no_wrap=True)
        table.add_column("off by", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("bits", no_wrap=True)
        for one in row["held"]:
            table.add_row(*_held(one))
        console.print(table, highlight=False)
        console.print()
    console.print(
        "[dim]Off by: the relative error. Bits: sign, exponent, fraction. Formats of 8 bits and fewer are "
        "used with a scale that fits a tensor to them; here each number stands as it is.[/]",
        highlight=False,
    )


def _table(title: str, first: str, room: int = 2) -> Table:
    table = plain_table(title, padding=(0, room, 0, 0))
    table.add_column(first, no_wrap=True)
    return table


def _fact(key: str, value: float | None) -> str:
    if key in ("exponent_bits", "significand_bits") or value is None:
        return str(value or "")
    if key == "decimal_digits":
        return f"{value:.1f}"
    return short(value, 5 if key == "largest" else 3)


def _held(one: dict[str, Any]) -> tuple[str, str, str, str, str]:
    value, error, fate = one["value"], one["relative_error"], one["fate"]
    colour = FATES[fate]
    word = fate.replace("_", " ")
    marked = f"[{colour}]{word}[/]" if colour else word
    held = "" if value is None else value if isinstance(value, str) else short(value, 9)
    off = f"{_percent(100 * error)} %" if error else ""
    return one["format"], held, off, marked, f"[dim]{one['bits'] or ''}[/]"


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else short(value, 2)


def short(value: float, digits: int) -> str:
    """Write a number in so many digits, with no zeros in front of its exponent."""
    return re.sub(r"e([+-])0*(\d)", lambda found: f"e{found[1].strip('+')}{found[2]}", f"{value:.{digits}g}")
