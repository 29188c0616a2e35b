"""What every command of a study begins with: its path, where its results are, the plan and the record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="A study's folder or its study.yaml.")]
Results = Annotated[Path, typer.Option("--results", metavar="DIR", help="Where results are kept.")]
RESULTS = Path("results")


def opened(study_path: Path, results: Path) -> tuple[Any, Any]:
    """Plan a study and open its record."""
    from paribus.plan.design import expand
    from paribus.plan.lock import pinned
    from paribus.plan.study import Study
    from paribus.record.store import Store

    study = Study.read(study_path)
    store = Store(results / study.name)
    store.check()
    return expand(pinned(study, store.root)), store


def check_tasks(plan: Any) -> None:
    """Raise ParibusError where a task of the study cannot be scored as it says, before anything starts."""
    from paribus.plan.content import placed

    if plan.study.score.tasks:
        from paribus.score import tasks

        for setting in plan.jobs[0].tasks:
            with placed(plan.study.place("score", "tasks", setting.name)):
                tasks.check(setting, plan.study.folder)
