"""Where lm-eval's tasks are, by name, and a user's own YAML file in their place."""

from __future__ import annotations

import difflib
import hashlib
from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import Any

from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, Kind, TaskIndex
from lm_eval.tasks._yaml_loader import load_yaml

from paribus.errors import ParibusError, Place
from paribus.plan.scoring import Benchmark
from paribus.score.lm_eval_calls import quiet, reason_of
from paribus.sources.cache import remembered
from paribus.sources.files import resolve


def find(setting: Benchmark, base: Path) -> tuple[TaskManager, str]:
    """Return a manager that knows the task, and what it is loaded by."""
    if bool(setting.task) == (setting.file is not None):
        raise ParibusError(
            f"the benchmark {setting.name!r} names {'a task and a file' if setting.task else 'no task'}.",
            way_out="Name a task of lm-eval, task: gsm8k, or a YAML file of your own, file: my_task.yaml.",
        )
    if setting.file is None:
        manager = copy(_manager())
        if setting.task not in manager.task_index:
            raise ParibusError(
                f"lm-eval has no task {setting.task!r}.", way_out=_nearest(setting.task, manager)
            )
        return manager, setting.task
    path = resolve(str(setting.file), base)
    if not path.is_file():
        raise ParibusError(
            f"there is no task file {str(path)!r}.",
            way_out="Correct the path; relative paths start at the study.",
        )
    try:
        config = load_yaml(path, resolve_func=False)
    except Exception as fault:
        raise ParibusError(
            f"not a task: {reason_of(fault)}",
            place=Place(path),
            way_out="See docs/new_task_guide.md of lm-eval.",
        ) from fault
    name = config.get("group", config.get("task"))
    if not isinstance(name, str):
        raise ParibusError(
            "not a task: it has neither task: NAME nor group: NAME.",
            place=Place(path),
            way_out="Give it a name, as in: task: my_task",
        )
    manager = copy(_manager()) if "group" in config else TaskManager(include_defaults=False)
    manager._index = {**manager.task_index, name: Entry(name, TaskIndex._kind_of(config), path)}
    return manager, name


def _nearest(name: str, manager: TaskManager) -> str:
    close = difflib.get_close_matches(name, manager.task_index, n=5)
    meant = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{meant}All {len(manager.task_index)} names: lm-eval ls tasks."


@cache
def _manager() -> TaskManager:
    """Return a manager of all of lm-eval's tasks; their index takes seconds to make and is kept on disk."""
    import lm_eval

    root = Path(lm_eval.__file__).parent
    version = getattr(lm_eval, "__version__", "")
    key = hashlib.sha256(f"{version}|{root}".encode()).hexdigest()[:32]
    manager = TaskManager(include_defaults=False)
    manager._index = {
        name: Entry(name, Kind[kind], root / path if path else None, tags=set(tags))
        for name, kind, path, tags in remembered("lm_eval_tasks", key, partial(_index, root))
    }
    return manager


def _index(root: Path) -> list[list[Any]]:
    with quiet():
        entries = TaskManager().task_index
    return [
        [
            name,
            entry.kind.name,
            Path(entry.yaml_path).relative_to(root).as_posix() if entry.yaml_path else None,
            sorted(entry.tags),
        ]
        for name, entry in entries.items()
    ]
