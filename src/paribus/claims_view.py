"""Claims on a terminal: the list with its counts, and one in full."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from paribus.compare.ledger import Ruling, counts
from paribus.screen import plain_table

COLOURS = {"supported": "green", "contradicted": "red", "inconclusive": "yellow", "not run": "dim"}


def show_claims(rulings: Sequence[Ruling], console: Console) -> None:
    """Print a line a claim: id, verdict, what it says and why, and the counts by verdict."""
    table = plain_table(padding=(0, 2, 0, 0))
    for header, fixed in (("claim", True), ("verdict", True), ("a document says", False), ("reason", False)):
        table.add_column(header, overflow="fold", no_wrap=fixed, ratio=None if fixed else 1)
    for one in rulings:
        table.add_row(f"[bold]{one.row.id}[/]", _word(one), escape(one.row.says), escape(one.reason))
    console.print(table, highlight=False)
    console.print()
    told = ", ".join(f"{count} {word}" for word, count in counts(rulings).items())
    console.print(f"{len(rulings)} claims: {told}.", highlight=False)
    console.print("[dim]One in full: paribus claims ID[/]")


def show_claim(one: Ruling, console: Console) -> None:
    """Print one claim: what is said, the verdict with its rule, numbers side by side, and the evidence."""
    row = one.row
    where = f"{row.document}, {row.section}, lines {row.lines}"
    console.print(f"[bold]{row.id}[/]  {_word(one)}  [dim]{escape(where)}[/]", highlight=False)
    console.print(f"\n{escape(row.says)}\n", highlight=False)
    if row.numbers or one.measured:
        console.print(_numbers(one), highlight=False)
        console.print()
    facts = (
        ("Reason", one.reason), ("Basis", one.basis), ("Evidence", one.evidence), ("Our figure", one.ours),
        ("Needs", row.needs), ("Would be settled by", ", ".join(row.ready)), ("Known beside it", row.beside),
        ("Contradicts", ", ".join(row.contradicts)),
    )  # fmt: skip
    for title, said in facts:
        if said:
            console.print(f"[dim]{title}:[/] {escape(said)}", highlight=False, soft_wrap=True)


def _numbers(one: Ruling) -> object:
    """Set each printed number beside the computed one of the same name."""
    claimed = {number.quantity: number for number in one.row.numbers}
    measured = {str(found["quantity"]): found for found in one.measured}
    table = plain_table(padding=(0, 2, 0, 0))
    for header in ("quantity", "claimed", "computed", "unit"):
        table.add_column(header, justify="right" if header in ("claimed", "computed") else "left")
    for name in [*claimed, *(name for name in measured if name not in claimed)]:
        number, found = claimed.get(name), measured.get(name)
        said = f"{number.relation if number.relation != '=' else ''}{number.value:g}" if number else ""
        unit = number.unit if number else str(found["unit"]) if found else ""
        table.add_row(escape(name), said, f"{found['value']:.6g}" if found else "", escape(unit))
    return table


def _word(one: Ruling) -> str:
    return f"[{COLOURS[one.verdict]}]{one.verdict}[/]"
