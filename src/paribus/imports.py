"""Commands on results that others recorded: read, and grouped by what their errors tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paribus.about import Json
from paribus.screen import err, out, print_json

app = typer.Typer(no_args_is_help=True, help="Read results of others and group them by their errors.")


@app.callback()
def _group() -> None:
    """Read results of others and group them by their errors."""


@app.command()
def peft(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="method_comparison/<task>/results of peft.")
    ],
    items: Annotated[
        int | None,
        typer.Option(min=1, help="Test items each was scored on, where a file does not say. GSM8K: 1319."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs of peft's method_comparison: each score with its binomial error, and tie groups."""
    from paribus.compare import tables
    from paribus.compare.peft_results import read_folder

    found = read_folder(folder, items)
    for warning in found.warnings:
        err.print(f"[yellow]note[/] {warning}", soft_wrap=True, highlight=False)
    if as_json:
        print_json(found.to_json())
    else:
        tables.show(found.sheet(), out)
