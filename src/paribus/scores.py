"""The command that adds scores to trials which have trained, and trains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from paribus import screen
from paribus.opened import RESULTS, Results, StudyPath, check_tasks, opened
from paribus.screen import err, out

if TYPE_CHECKING:
    from rich.console import Console

    from paribus.plan.design import Plan
    from paribus.plan.trial import Job
    from paribus.record.store import Store

app = typer.Typer()
TELLING = ("kind", "task", "num_fewshot", "limit", "max_gen_toks", "samples", "metrics")
"""What of a task's settings a plan shows."""


@app.command()
def score(
    study: StudyPath,
    results: Results = RESULTS,
    max_workers: Annotated[
        int | None, typer.Option(min=1, help="Trials at a time. Default: one a core, or one a GPU.")
    ] = None,
    only: Annotated[
        str, typer.Option(metavar="IDS", help="Only trials whose id begins with one of these.")
    ] = "",
) -> None:
    """Score finished trials by what the study has come to ask for, on their kept weights; nothing trains."""
    from paribus.probe import machine
    from paribus.run.options import Options, selected
    from paribus.run.preparation import scratch_folder
    from paribus.run.rescoring import lacking
    from paribus.run.supervisor import run

    plan, store = opened(study, results)
    check_tasks(plan)
    options = Options.parse(max_workers, only=only)
    found = lacking(selected(plan.jobs, options.only), store, scratch_folder(store))
    failed = bool(found.gone)
    if found.kept:
        with screen.Watch(plan, err) as watch:
            needed = {job.trial_id for job in found.kept}
            summary = run(plan, store, machine(), options, watch, needed=needed)
        if summary.interrupted:
            err.print("Stopped. Nothing is lost: the same command goes on from here.")
            raise typer.Exit(130)
        left = len(lacking(found.kept, store, scratch_folder(store)).kept)
        failed = failed or left > 0
        out.print(f"{len(found.kept) - left} trials scored" + (f", {left} failed" if left else ""))
    elif not found.gone:
        out.print("Every finished trial has the scores the study asks for.")
    if found.gone:
        _show_gone(found.gone, study, err)
    raise typer.Exit(1 if failed else 0)


def show_tasks(plan: Plan, store: Store, console: Console) -> None:
    """List what is scored beside held-out loss, and say what adding it to recorded trials costs."""
    from paribus.run.preparation import scratch_folder
    from paribus.run.rescoring import lacking

    for name, task in plan.study.score.tasks.items():
        said = ", ".join(
            f"{key} {value}" for key, value in sorted(task.canonical().items()) if key in TELLING
        )
        line = f"[bold]score[/] {escape(name)}: {escape(said)}, before and after training"
        console.print(line, soft_wrap=True, highlight=False)
    found = lacking(plan.jobs, store, scratch_folder(store)) if plan.study.score.tasks else None
    if found and found.kept:
        console.print(
            f"{len(found.kept)} recorded trials lack a score; their weights are kept: nothing trains"
        )
    if found and found.gone:
        _show_gone(found.gone, plan.study.folder, console)


def _show_gone(jobs: Sequence[Job], study: Any, console: Console) -> None:
    """Name the trials whose scores need weights that were not kept."""
    ids = " ".join(job.trial_id for job in jobs[:8]) + (" ..." if len(jobs) > 8 else "")
    message = (
        f"{len(jobs)} trials lack a score and their weights were not kept: {ids}\n"
        f"  `paribus run {study}` trains them again, to the same weights, and scores them. "
        "To score later without training, set keep: last."
    )
    console.print(message, soft_wrap=True, highlight=False, markup=False)
