"""Write `docs/laws.md` from the rows of the matrix."""

from __future__ import annotations

import platform
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cases import singles
from exceptions import EXCEPTIONS

import tiny
from laws import LAWS

Row = dict[str, Any]
"""A case on a model: `laws` has kind, size and note by law; ways of tuning have `facts`."""

PAGE = Path(__file__).parents[2] / "docs" / "laws.md"
KINDS = {
    "passed": "passed",
    "failed": "failed",
    "exception": "named exceptions",
    "unsupported": "cannot run",
    "silent": "say nothing",
}
SIGNS = {
    "passed": "",
    "failed": " **failed**",
    "exception": " named",
    "unsupported": " cannot run",
    "silent": " n/a",
}


def write(rows: Sequence[Row]) -> None:
    """Write the page."""
    PAGE.write_text(page(rows), encoding="utf-8")


def summary(rows: Iterable[Row]) -> str:
    """Count cells by what became of them."""
    kinds = Counter(kind for row in rows for kind, *_ in row["laws"].values())
    return ", ".join(f"{kinds[kind]:,} {words}" for kind, words in KINDS.items())


def failures(rows: Sequence[Row]) -> list[tuple[str, str, str, str]]:
    """List each cell that failed, and each exception that no cell met: case, model, law, what was found."""
    failed = [
        (row["case"], row["model"], law, f"{'' if size is None else f'{size:.2g} '}{note}")
        for row in rows
        for law, (kind, size, note) in row["laws"].items()
        if kind == "failed"
    ]
    unmet = [
        (one.cases, ", ".join(one.models), one.law, "its named exception was met nowhere")
        for one in EXCEPTIONS
        if not _sizes(one, rows)
    ]
    return failed + unmet


def page(rows: Sequence[Row]) -> str:
    """Write tables of counts, of what tuning leaves, of exceptions, of what cannot run, and of failures."""
    names = [case.name for case in singles()]
    alone = [row for row in rows if row["case"] in names]
    together = [row for row in rows if row["case"] not in names]
    cells = len(LAWS) * len(alone)
    sections = [
        ["# The laws, technique by technique"],
        [
            f"Written by `python tests/laws/matrix.py` from `tests/laws/matrix.jsonl`: {len(names)} levels "
            f"of techniques, {len(LAWS)} laws, {len(tiny.MODELS)} architectures of some 20,000 parameters "
            f"({', '.join(tiny.MODELS)}) with random weights. torch {version('torch').partition('+')[0]}, "
            f"transformers {version('transformers')}, peft {version('peft')}, bitsandbytes "
            f"{version('bitsandbytes')}, {platform.machine()}, one thread."
        ],
        [f"**Each level alone, {cells:,} cells: {summary(alone)}.**"],
        [
            f"**Pairs of levels, {len({row['case'] for row in together})} combinations that cover every pair "
            f"that can run, {len(LAWS) * len(together):,} cells: {summary(together)}.** Their failures, if "
            "any, are below; they train few steps."
        ],
        _table(("law", "says", "limit"), [(n, law.says, f"{law.limit:g}") for n, law in LAWS.items()]),
        ["The split law trains 160 optimizer steps. Its limit and that of `gradient` are the contracts'."],
        ["## Technique by law"],
        [
            f"A cell counts architectures; {len(tiny.MODELS)} alone is all of them. *named*: an exception, "
            "with its reason below. *n/a*: the law says nothing (what does not merge). *cannot run*: refused "
            "with a reason."
        ],
        _table(("technique", *LAWS), [(name, *_counted(name, alone)) for name in names]),
        ["## What a way of tuning trains and leaves"],
        [
            "On Llama, or on GPT-2 where Llama has nothing to train. Bytes are those of the folder that a "
            "trained model is saved to; merging is the largest change of a logit over the largest logit."
        ],
        _table(
            ("tuning", "model", "trains", "of", "share", "bytes on disk", "merging changes"), _facts(alone)
        ),
        ["## Named exceptions"],
        [
            "Committed before the matrix ran. Breaking a law by less or by more than the bounds is a "
            "failure; where last digits decide whether a case meets its exception, it must be met on some "
            "architecture."
        ],
        _table(
            ("technique", "law", "measured", "bounds", "reason"),
            [
                (
                    one.cases,
                    one.law,
                    _measured(_sizes(one, rows)),
                    f"{one.least:g} to {one.most:g}",
                    one.reason,
                )
                for one in EXCEPTIONS
            ],
        ),
        ["## What cannot run"],
        _table(("technique", "architectures", "reason"), _refused(alone)),
        ["## Failures"],
        _table(("technique", "architecture", "law", "found"), failures(rows))
        if failures(rows)
        else ["None."],
    ]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(fields: Sequence[str]) -> str:
        return f"| {' | '.join(field.replace('|', chr(92) + '|') for field in fields)} |"

    return [line(head), f"|{'---|' * len(head)}", *map(line, rows)]


def _counted(name: str, rows: Sequence[Row]) -> list[str]:
    """Write one technique's counts, law by law."""
    found = []
    for law in LAWS:
        counts = Counter(row["laws"][law][0] for row in rows if row["case"] == name)
        found.append(", ".join(f"{counts[kind]}{sign}" for kind, sign in SIGNS.items() if counts[kind]))
    return found


def _facts(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    first: dict[str, Row] = {}
    for row in rows:
        if "facts" in row and row["model"] in ("llama", "gpt2"):
            first.setdefault(row["case"], row)
    lines = []
    for name, row in first.items():
        facts, (kind, size, _) = row["facts"], row["laws"]["merge"]
        trains, total = facts["trainable_parameters"], facts["total_parameters"]
        merging = "does not merge" if kind == "silent" else f"{size:.1e}" if size else "0"
        share = f"{trains / total:.1%}"
        lines.append(
            (name, row["model"], f"{trains:,}", f"{total:,}", share, f"{facts['saved_bytes']:,}", merging)
        )
    return lines


def _sizes(one: Any, rows: Sequence[Row]) -> list[float]:
    """Return the sizes that the single cases of an exception were found to have."""
    return [
        row["laws"][one.law][1]
        for row in rows
        if one.covers(row["case"], one.law, row["model"]) and row["laws"][one.law][0] == "exception"
    ]


def _measured(sizes: Sequence[float]) -> str:
    if not sizes:
        return "never"
    return f"{min(sizes):.1e} to {max(sizes):.1e} on {len(sizes)}"


def _refused(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        for note in sorted({note for kind, _, note in row["laws"].values() if kind == "unsupported"}):
            reasons[row["case"], note].append(row["model"])
    return [(case, ", ".join(models), note) for (case, note), models in reasons.items()]
