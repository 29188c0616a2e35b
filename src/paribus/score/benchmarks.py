"""Standard benchmarks through lm-eval, on the model in memory: its prompts, filters, metrics and aggregation.

Documents come from the hub as in lm-eval, or from files of the user's, by `data`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from paribus.errors import ParibusError
from paribus.plan.scoring import Benchmark
from paribus.score.subject import Scored, Subject


def check(setting: Benchmark, base: Path) -> str:
    """Return the hash of a task's YAML files and of every document it reads, wherever they came from.

    Raises ParibusError where it cannot be scored.
    """
    return _run().check(setting, base)


def score(setting: Benchmark, subject: Subject) -> Scored:
    """Score a model: a figure for each leaf task, metric and group, a row for each document and metric."""
    return _run().score(setting, subject)


def _run() -> Any:
    """Return the module that needs lm-eval; raises ParibusError where it is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ParibusError(
            "benchmarks need the package lm-eval.", way_out="Install it: pip install 'paribus[scoring]'"
        )
    from paribus.score import benchmark_run

    return benchmark_run
