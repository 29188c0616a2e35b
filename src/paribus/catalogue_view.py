"""The catalogue of techniques on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from paribus.catalogue import Entry, settings, written
from paribus.screen import plain_table, runs


def show_techniques(entries: Sequence[Entry], console: Console) -> None:
    """Print every technique, axis by axis: how it runs here, its settings and its paper."""
    table = plain_table(padding=(0, 2, 0, 0))
    for header, fixed in (("technique", True), ("runs", True), ("settings", False), ("paper", False)):
        table.add_column(header, overflow="fold", no_wrap=fixed, ratio=None if fixed else 1)
    before = ""
    for entry in entries:
        if entry.axis != before:
            table.add_row(*[""] * bool(before))
        if entry.axis not in (before, entry.name):
            table.add_row(f"[bold]{entry.axis}[/]")
        name = f"[bold]{entry.axis}[/]" if entry.name == entry.axis else f"  {entry.name}"
        names = ", ".join(settings(entry.technique))
        table.add_row(name, runs(entry.runs), escape(names), escape(entry.technique.paper))
        before = entry.axis
    console.print(table, highlight=False)
    console.print()
    for entry in (entry for entry in entries if entry.reason):
        reason = escape(f"{entry.reason}; {entry.way_out}")
        console.print(f"{entry.name}: [dim]{reason}[/]", highlight=False)
    console.print("\n[dim]One in full: paribus techniques NAME[/]")


def show_technique(entry: Entry, console: Console) -> None:
    """Explain one technique: what it does, its settings with their values and defaults, where it runs."""
    document = entry.to_json()
    console.print(f"[bold]{entry.name}[/]  {entry.axis}  {runs(entry.runs)}", highlight=False)
    if entry.reason:
        console.print(f"[yellow]{escape(f'{entry.reason}; {entry.way_out}')}[/]", highlight=False)
    console.print(f"\n{escape(document['about'])}\n", highlight=False)
    if document["settings"]:
        table = plain_table(padding=(0, 2, 0, 0))
        for header in ("setting", "values", "default"):
            table.add_column(header, overflow="fold", no_wrap=header == "setting")
        for setting in document["settings"]:
            default = "required" if setting["required"] else written(setting["default"])
            table.add_row(setting["name"], escape(setting["values"]), escape(default))
        console.print(table, highlight=False)
        console.print()
    console.print(f"[dim]In a study:[/] {escape(entry.example())}\n", highlight=False, soft_wrap=True)
