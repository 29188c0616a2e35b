"""The kinds of score, by the word a study says: which module computes each.

Each module has `check(setting, base)`, which raises ParibusError for what a user wrote wrongly and returns
the SHA-256 of all that the score reads, and `score(setting, subject)`, which returns what it `Scored`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from paribus.plan.scoring import TaskSetting
from paribus.score.subject import Scored, Subject

MODULES: Final = {
    "benchmark": "paribus.score.benchmarks",
    "code": "paribus.score.code",
    "win_rate": "paribus.score.winrate",
    "inference_cost": "paribus.score.inference",
    "text": "paribus.score.text",
}


def _module(setting: Any) -> Any:
    return import_module(MODULES[setting.kind])


def check(setting: TaskSetting, base: Path) -> str:
    """Raise ParibusError where a score cannot be computed as the study says; return its content's hash."""
    return _module(setting).check(setting, base)


def score(setting: TaskSetting, subject: Subject) -> Scored:
    """Score a model."""
    return _module(setting).score(setting, subject)
