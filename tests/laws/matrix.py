"""Ask every law of every technique on every architecture, and of pairs of techniques; write what came of it.

`python tests/laws/matrix.py [--jobs 2]` goes on where it stopped: what `matrix.jsonl` holds is not asked
again. `--again failed` asks again what failed, `--again stale` what was measured on other sources. When
nothing is left, `docs/laws.md` is written; the exit status is 1 where something failed. `--only norms` asks
the cases whose names begin so, alone and on every architecture, prints what came of it and writes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from cases import Case, pairs, singles
from page import Row, failures, summary, write
from transformers.utils.logging import disable_progress_bar
from verdicts import judge

import tiny
from laws import LAWS, run
from paribus.techniques import NoEffect

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).with_name("matrix.jsonl")
PAIRS_ON = ("llama", "gpt2")
"""Where pairs of levels are asked every law."""


def main() -> int:
    """Fill the matrix and write the page."""
    disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--again", choices=("failed", "stale"), help="ask again what failed or is stale")
    parser.add_argument("--only", help="how the names of the cases begin; writes nothing")
    given = parser.parse_args()
    if given.only:
        return _only(given.only)
    source, wanted = sources(), {(case.name, model): case for case, model in cells()}
    known = {
        (row["case"], row["model"]): row
        for row in recorded()
        if (row["case"], row["model"]) in wanted and not _asked_again(row, given.again, source)
    }
    todo = [(case, model) for (name, model), case in wanted.items() if (name, model) not in known]
    began = time.monotonic()
    with ProcessPoolExecutor(given.jobs) as pool:
        futures = [pool.submit(ask, case, model, source) for case, model in todo]
        for done, future in enumerate(as_completed(futures), start=1):
            row = future.result()
            known[row["case"], row["model"]] = row
            _record([known[key] for key in wanted if key in known])
            left = (time.monotonic() - began) / done * (len(todo) - done)
            print(f"{done}/{len(todo)}  {left / 60:.0f} min left", end="\r", file=sys.stderr)
    rows = [known[key] for key in wanted]
    _record(rows)
    write(rows)
    print(f"\n{summary(rows)}")
    print(*(f"failed: {' | '.join(one)}" for one in failures(rows)), sep="\n")
    return 1 if failures(rows) else 0


def _only(begin: str) -> int:
    """Ask every law of some single cases on every architecture, and print what came of each."""
    asked = [(case, model) for case in singles() if case.name.startswith(begin) for model in tiny.MODELS]
    if not asked:
        print(f"no case has a name that begins with {begin!r}: {', '.join(case.name for case in singles())}")
        return 1
    failed = 0
    for case, model in asked:
        laws = ask(case, model, "")["laws"]
        counts = Counter(kind for kind, *_ in laws.values())
        print(f"{case.name}, {model}: {', '.join(f'{count} {kind}' for kind, count in counts.items())}")
        broken = [f"  {law} {size} {note}" for law, (kind, size, note) in laws.items() if kind == "failed"]
        print(*broken, sep="\n", end="\n" if broken else "")
        failed += len(broken)
    return 1 if failed else 0


def cells() -> Iterator[tuple[Case, str]]:
    """Yield every case with every architecture it is asked on."""
    yield from ((case, model) for case in singles() for model in tiny.MODELS)
    yield from ((case, model) for model in PAIRS_ON for case in pairs(model))


def ask(case: Case, model: str, source: str) -> Row:
    """Judge all laws of a case on a model; a pair trains few steps."""
    alone = len(case.parts) == 1
    judged = {law: judge(case, law, model, thorough=alone) for law in LAWS}
    laws = {law: [kind, _number(size), note] for law, (kind, size, note) in judged.items()}
    facts = tuning_facts(case, model) if alone and "tuning" in case.chosen else {}
    return {"case": case.name, "model": model, "source": source, "laws": laws, **facts}


def _number(size: float | None) -> float | None:
    """Leave out what JSON cannot say: a size beyond all limits."""
    return size if size is not None and math.isfinite(size) else None


def tuning_facts(case: Case, model: str) -> dict[str, Any]:
    """Measure what a way of tuning trains and leaves on disk."""
    if case.obstacle(model):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            here = case.on(model)
            trained = run(
                tiny.MODELS[model](),
                *here.techniques,
                after=lambda wrapped, live: here.tuner.save(wrapped, Path(folder)),
            )
        except NoEffect:
            return {}
        saved = [path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()]
    proof = trained.proofs[0]
    names = ("trainable_parameters", "total_parameters")
    return {"facts": {name: proof[name] for name in names} | {"saved_bytes": sum(saved)}}


def sources() -> str:
    """Hash the code that the matrix depends on."""
    folders = (ROOT / "src/paribus/techniques", ROOT / "src/paribus/train", Path(__file__).parent)
    files = [ROOT / "tests/tiny.py", *(path for folder in folders for path in sorted(folder.rglob("*.py")))]
    asked = [path for path in files if not path.name.startswith(("test_", "page", "matrix", "fresh"))]
    content = b"".join(path.read_bytes() for path in asked)
    return hashlib.sha256(content).hexdigest()[:12]


def recorded() -> list[Row]:
    """Read the rows of earlier runs."""
    return [json.loads(line) for line in DATA.read_text("utf-8").splitlines()] if DATA.exists() else []


def _record(rows: list[Row]) -> None:
    aside = DATA.with_suffix(".part")
    aside.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    aside.replace(DATA)


def _asked_again(row: Row, again: str | None, source: str) -> bool:
    if again == "failed":
        return any(kind == "failed" for kind, *_ in row["laws"].values())
    return again == "stale" and row["source"] != source


if __name__ == "__main__":
    sys.exit(main())
