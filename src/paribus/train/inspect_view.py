"""The terminal's view of a study's data."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paribus.train.inspection import SHARES, Inspection, Lengths, Piece, Shown

STYLES = {"read": "dim", "learnt": "bold green", "cut": "red strike"}
OPEN, CLOSE = "⟦", "⟧"
"""Stand around what is learnt, so that it is seen without colours too."""
TOLD = (0.0, 0.5, 0.95, 1.0)
"""The quantiles that the terminal has room for."""
LONGEST = 700
"""Characters of one piece of text that are shown; its middle is left out beyond."""


def show(inspection: Inspection, console: Console) -> None:
    """Print examples with what is learnt of them, lengths, overlap, and what should be looked at."""
    console.print(_heading(inspection))
    for number, shown in enumerate(inspection.shown, 1):
        console.print(_example(number, shown, inspection.loss_on))
    console.print(_legend(any(piece.fate == "cut" for one in inspection.shown for piece in one.pieces)))
    console.print()
    console.print(_table(inspection.lengths, inspection.max_length))
    console.print(_overlap(inspection))
    if inspection.advice:
        lines = Group(*(_bullet(line) for line in inspection.advice))
        console.print(Panel(lines, title="look at this", title_align="left", border_style="yellow"))
    else:
        console.print(Text("Nothing is cut, every answer ends, no prompt is in two splits.", style="green"))


def _heading(inspection: Inspection) -> Text:
    context = f" of {inspection.context_length:,}" if inspection.context_length else ""
    ends = " ".join(inspection.end_tokens) or "none"
    rendered = "by the chat template" if inspection.rendering == "chat" else "plain"
    text = Text.assemble(("Data of ", ""), (inspection.study, "bold"), "\n")
    text.append(f"rendered {rendered} · loss on {inspection.loss_on}\n")
    return text.append(f"at most {inspection.max_length:,}{context} tokens · end of text: {ends}\n")


def _example(number: int, shown: Shown, loss_on: str) -> Panel:
    text = Text()
    for piece in shown.pieces:
        text.append_text(_marked(piece))
    text.rstrip()
    count = "the label of" if loss_on == "label" else f"{shown.targets} of"
    title = f"train example {number} · {shown.example_id} · {count} {shown.tokens} tokens learnt"
    return Panel(text, title=title, title_align="left", border_style="blue")


def _marked(piece: Piece) -> Text:
    """Return a piece in its style; line breaks at its border are made visible, so that none is overlooked."""
    middle = len(piece.text) - LONGEST
    words = piece.text
    if middle > 0:
        words = f"{words[: LONGEST // 2]} […{middle:,} characters…] {words[-LONGEST // 2 :]}"
    text = Text(words.replace("\n", "↵\n"), style=STYLES[piece.fate])
    if piece.fate == "learnt":
        return Text.assemble((OPEN, "green"), text, (CLOSE, "green"))
    return Text.assemble(("✂ ", "red"), text) if piece.fate == "cut" else text


def _legend(cut: bool) -> Text:
    parts = [("read, not learnt", STYLES["read"]), "   ", (f"{OPEN}learnt{CLOSE}", STYLES["learnt"])]
    return Text.assemble(
        "  ", *parts, *(["   ", ("✂ cut off", STYLES["cut"])] if cut else []), "   ↵ line break"
    )


def _table(lengths: tuple[Lengths, ...], limit: int) -> Table:
    """Lay out a row a group, narrow enough for 80 columns."""
    title = "length in tokens, before the cut"
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False, title=title)
    table.title_justify, table.title_style = "left", "bold"
    table.add_column("split", no_wrap=True)
    for name in ("examples", *map(_share, TOLD), f"over {limit}", "no target", "no end", "twice"):
        table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True, vertical="bottom")
    for one in lengths:
        counts = (one.truncated, one.without_targets, one.without_end, one.duplicates)
        quantiles = dict(zip(SHARES, one.quantiles, strict=False))
        table.add_row(
            one.split if one.group == "all" else f"{one.split}\n  {one.group}",
            f"{one.examples:,}",
            *(f"{quantiles[share]:,}" if share in quantiles else "" for share in TOLD),
            *(_count(count, one.examples) for count in counts),
        )
    return table


def _share(share: float) -> str:
    return {0.0: "min", 0.5: "median", 1.0: "max"}.get(share, f"{share:.0%}")


def _count(count: int, whole: int) -> Text:
    return Text(f"{count:,} {count / whole:.0%}", style="yellow") if count else Text("0", style="dim")


def _overlap(inspection: Inspection) -> Text:
    pairs = [f"{one.first}/{one.second} {one.shared}" for one in inspection.overlap]
    return Text(f"\nprompts in two splits: {' · '.join(pairs)}\n")


def _bullet(line: str) -> Text:
    return Text.assemble(("• ", "yellow"), line)
