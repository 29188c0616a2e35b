"""Validates the statistics on studies whose truth is known; writes results.json and README.md beside itself.

    python benchmarks/statistics/validate.py                           # 2,000 studies a scenario
    python benchmarks/statistics/validate.py --studies 100 --to DIR    # fewer, somewhere else
    python benchmarks/statistics/validate.py --null results/real_null  # with the real null of these results

Seeds are fixed (rows.SEED), every scenario that runs is shown, and the exit code is 1 where one that promises
something does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fixed
import others
import sequential
from page import page
from rows import SEED, Row

HERE = Path(__file__).parent
STUDY = HERE.parents[1] / "experiments" / "real_null"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=2000, help="simulated studies a scenario")
    parser.add_argument("--to", type=Path, default=HERE, help="where results.json and README.md are written")
    parser.add_argument("--null", type=Path, help="results of experiments/real_null to take the losses from")
    given = parser.parse_args()
    if given.null:
        take_null(given.null)
    rows = list(_told(given.studies))
    shapes = list(sequential.spending(10 * given.studies))
    document = {
        "seed": SEED,
        "studies": given.studies,
        "rows": [row.to_json() for row in rows],
        "spending": shapes,
    }
    given.to.mkdir(parents=True, exist_ok=True)
    (given.to / "results.json").write_text(json.dumps(_plain(document), indent=1) + "\n", encoding="utf-8")
    (given.to / "README.md").write_text(page(document), encoding="utf-8")
    broken = [row for row in rows if row.holds is False]
    for row in broken:
        print(
            f"does not hold: {row.topic}, {row.scenario}, {row.measure}: {row.observed:.4f}", file=sys.stderr
        )
    return 1 if broken else 0


def _told(studies: int) -> Iterator[Row]:
    for scenarios in (fixed.scenarios, sequential.scenarios, others.scenarios):
        for row in scenarios(studies):
            print(f"{row.topic} | {row.scenario} | {row.measure} | {row.observed:.4f}", flush=True)
            yield row


def take_null(results: Path) -> None:
    """Read the test loss of every training of experiments/real_null from its results."""
    from paribus.compare.findings import Findings
    from paribus.plan.design import expand
    from paribus.plan.study import Study
    from paribus.record.store import Store

    findings = Findings(expand(Study.read(STUDY)), Store(results))
    losses = findings.values(findings.primary)
    ordered = {job.trial_id: losses[job.trial_id] for job in findings.plan.jobs if job.trial_id in losses}
    document = {"study": "experiments/real_null", "metric": str(findings.metric), "losses": ordered}
    others.NULL.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    """Turn the numbers of numpy into those of Python, rounded to what the simulation can tell."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return round(float(value), 6) if hasattr(value, "dtype") or isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
