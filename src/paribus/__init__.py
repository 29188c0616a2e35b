"""Ablations of LLM fine-tuning, all else being equal.

One pipeline of frozen values: Study -> Plan -> results -> table -> contrasts -> report. The names below are
loaded when they are first asked for, so that importing paribus loads neither torch nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paribus.compare.report import write_report as write_report
    from paribus.conduct.adaptive import run as run
    from paribus.plan.design import Plan as Plan
    from paribus.plan.design import expand as expand
    from paribus.plan.study import Study as Study
    from paribus.record.store import Store as Store
    from paribus.record.table import tidy as tidy

__version__ = "0.1.0"

_HOMES = {
    "Study": "paribus.plan.study",
    "Plan": "paribus.plan.design",
    "expand": "paribus.plan.design",
    "Store": "paribus.record.store",
    "run": "paribus.conduct.adaptive",
    "tidy": "paribus.record.table",
    "write_report": "paribus.compare.report",
}

__all__ = ["Plan", "Store", "Study", "__version__", "expand", "run", "tidy", "write_report"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'paribus' has no attribute {name!r}")
