"""Ask every law of every technique on every architecture, and write what came of it.

`python tests/laws/matrix.py [--jobs 2]` goes on where it stopped: what `matrix.jsonl` holds is not asked again
(remove it to begin anew). When nothing is left, `docs/laws.md` is written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from cases import Case, singles
from exceptions import EXCEPTIONS
from verdicts import judge

import tiny
from laws import LAWS

DATA = Path(__file__).with_name("matrix.jsonl")
PAGE = Path(__file__).parents[2] / "docs" / "laws.md"
THOROUGH = ("llama", "gpt2")
"""Where the split law trains 160 steps in fp64; elsewhere it trains 12."""
SIGNS = {
    "passed": "",
    "failed": " failed",
    "exception": " named",
    "unsupported": " cannot run",
    "silent": " n/a",
}


def main() -> None:
    """Fill the matrix and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--again", choices=("failed",), help="ask again what failed")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    known = {(row["case"], row["model"], row["law"]): row for row in _recorded()}
    if given.again:
        known = {key: row for key, row in known.items() if row["kind"] != given.again}
        DATA.write_text("".join(json.dumps(row) + "\n" for row in known.values()), encoding="utf-8")
    wanted = [(case, model) for case in singles() for model in tiny.MODELS]
    open_cells = [
        (case, model, [law for law in LAWS if (case.name, model, law) not in known]) for case, model in wanted
    ]
    todo = [(case, model, laws) for case, model, laws in open_cells if laws]
    began = time.monotonic()
    with ProcessPoolExecutor(given.jobs) as pool, DATA.open("a", encoding="utf-8") as file:
        futures = [pool.submit(ask, case, model, laws) for case, model, laws in todo]
        for done, future in enumerate(as_completed(futures), start=1):
            for row in future.result():
                known[row["case"], row["model"], row["law"]] = row
                file.write(json.dumps(row) + "\n")
            file.flush()
            left = (time.monotonic() - began) / done * (len(todo) - done)
            print(f"{done}/{len(todo)}  {left / 60:.0f} min left", end="\r", file=sys.stderr)
    names = {case.name for case in singles()}
    rows = [row for row in known.values() if row["case"] in names and row["law"] in LAWS]
    PAGE.write_text(page(rows), encoding="utf-8")
    print(f"\n{_counts(rows)}; {PAGE}")
    for row in rows:
        if row["kind"] == "failed":
            print(f"failed: {row['case']} | {row['model']} | {row['law']} | {row['size']} {row['note']}")


def ask(case: Case, model: str, laws: list[str]) -> list[dict[str, Any]]:
    """Judge some laws of a case on a model."""
    found = []
    for law in laws:
        verdict = judge(case, law, model, thorough=model in THOROUGH)
        found.append({"case": case.name, "model": model, "law": law, **verdict._asdict()})
    return found


def _recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in DATA.read_text("utf-8").splitlines()] if DATA.exists() else []


def _counts(rows: list[dict[str, Any]]) -> str:
    kinds = Counter(row["kind"] for row in rows)
    words = {
        "passed": "passed", "failed": "failed", "exception": "named exceptions",
        "unsupported": "cannot run", "silent": "say nothing",
    }  # fmt: skip
    return ", ".join(f"{kinds[kind]} {word}" for kind, word in words.items())


def page(rows: list[dict[str, Any]]) -> str:
    """Write the table of techniques and laws, the exceptions and what cannot run."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        cells[row["case"], row["law"]].append(row)
    cases = list(dict.fromkeys(case.name for case in singles()))
    lines = [
        "# The laws, technique by technique",
        "",
        "Written by `python tests/laws/matrix.py`. A cell counts the architectures of "
        f"{', '.join(tiny.MODELS)} on which a law holds; a number alone is all six. *named*: an exception with its "
        "reason below. *n/a*: the law says nothing there (what does not merge). *cannot run*: refused "
        "beforehand, with a reason.",
        "",
        f"**{len(rows)} cells: {_counts(rows)}.**",
        "",
        "| law | says | limit |",
        "|---|---|---|",
        *(f"| {name} | {law.says} | {law.limit:g} |" for name, law in LAWS.items()),
        "",
        f"The split law trains 160 steps on {' and '.join(THOROUGH)}, 12 elsewhere. Its limit and that of `gradient` "
        "are the contracts'.",
        "",
        f"| technique | {' | '.join(LAWS)} |",
        f"|---{'|---' * len(LAWS)}|",
        *(f"| {name} | {' | '.join(_cell(cells[name, law]) for law in LAWS)} |" for name in cases),
        "",
        "## Named exceptions",
        "",
        "Committed before the matrix ran; a case that breaks its law by less or by more than its bounds fails.",
        "",
        "| technique | law | measured | bounds | reason |",
        "|---|---|---|---|---|",
        *_exceptions(rows),
        "",
        "## What cannot run",
        "",
        "| technique | architectures | reason |",
        "|---|---|---|",
        *_refused(rows),
        *_failed(rows),
        "",
    ]
    return "\n".join(lines)


def _cell(rows: list[dict[str, Any]]) -> str:
    counts = Counter(row["kind"] for row in rows)
    parts = [f"{counts[kind]}{sign}" for kind, sign in SIGNS.items() if counts[kind]]
    return ", ".join(parts)


def _exceptions(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for one in EXCEPTIONS:
        sizes = [
            row["size"]
            for row in rows
            if row["kind"] == "exception" and one.covers(row["case"], row["law"], row["model"])
        ]
        if sizes:
            measured = f"{min(sizes):.1e} to {max(sizes):.1e} on {len(sizes)}"
            bounds = f"{one.least:g} to {one.most:g}"
            lines.append(f"| {one.cases} | {one.law} | {measured} | {bounds} | {one.reason} |")
    return lines


def _refused(rows: list[dict[str, Any]]) -> list[str]:
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        if row["kind"] == "unsupported":
            models = reasons[row["case"], row["note"]]
            models += [row["model"]] if row["model"] not in models else []
    return [f"| {case} | {', '.join(models)} | {note} |" for (case, note), models in sorted(reasons.items())]


def _failed(rows: list[dict[str, Any]]) -> list[str]:
    failed = [row for row in rows if row["kind"] == "failed"]
    if not failed:
        return []
    listed = [f"| {r['case']} | {r['model']} | {r['law']} | {r['size']} {r['note']} |" for r in failed]
    return ["", "## Failures", "", "| technique | architecture | law | found |", "|---|---|---|---|", *listed]


if __name__ == "__main__":
    main()
