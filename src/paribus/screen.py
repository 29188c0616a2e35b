"""What a terminal shows beside the tables of results: the plan, progress with time left, status, doctor."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from paribus.errors import ParibusError, Place
from paribus.machine import GIB, Machine
from paribus.run.events import Event, Summary

if TYPE_CHECKING:
    from paribus.plan.design import Cell, Plan
    from paribus.record.store import Store

out, err = Console(), Console(stderr=True)

COLOURS = {
    "finished": "green", "diverged": "yellow", "out_of_memory": "yellow", "skipped": "yellow",
    "unsupported": "yellow", "killed": "red", "crashed": "red", "pending": "dim",
}  # fmt: skip

ANOTHER_PLACE = (
    "Make room or permissions there, or use another place: --results DIR, or the variables PARIBUS_CACHE "
    "and TMPDIR."
)


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def plain_table(title: str | None = None, **kwargs: Any) -> Table:
    """Return a table in the one look that every screen uses."""
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, **kwargs)


def show_plan(
    plan: Plan, store: Store, machine: Machine, console: Console, every_trial: bool = False
) -> None:
    """Print the question, what is fixed, and each cell with what is recorded of it or stands in its way."""
    from paribus.plan.preflight import obstacles

    study, results, blocked = plan.study, store.results(), obstacles(plan, machine)
    console.print(f"[bold]{escape(study.name)}[/]  {escape(study.question)}")
    console.print(_counts_line(plan, results, blocked), highlight=False)
    if study.repeat.looks:
        console.print(_cost_line(plan, results), highlight=False)
    table = plain_table()
    axes = list(plan.cells[0].coordinates)
    for axis in axes:
        table.add_column(_short(axis))
    table.add_column("seeds", justify="right")
    table.add_column("trials" if every_trial else "")
    for cell in plan.cells:
        state = _trial_ids(cell, results, blocked) if every_trial else _state(cell, results, blocked)
        marks = [_coordinate(cell, axis) for axis in axes]
        table.add_row(*marks, _seeds(cell, study.repeat.least), state)
    console.print(table)
    reasons = {f"{block.technique}: {block.reason}; {block.way_out}" for block in blocked.values()}
    for reason in sorted(reasons):
        console.print(f"[yellow]unsupported[/] {escape(reason)}", soft_wrap=True, highlight=False)
    for excluded in plan.excluded:
        console.print(f"[dim]excluded[/] {escape(str(excluded))}", soft_wrap=True, highlight=False)


def _seeds(cell: Cell, least: int | None) -> str:
    """Write how many seeds a cell takes, in an adaptive study from how many to how many."""
    most = len(cell.trials)
    return f"{least}..{most}" if least and most > least else str(most)


def _counts_line(plan: Plan, results: dict[str, Any], blocked: dict[str, Any]) -> str:
    done = sum(job.trial_id in results for job in plan.jobs)
    seeds, least = len({job.trial.seed for job in plan.jobs}), plan.study.repeat.least
    repeats = f"{least} to {seeds} seeds" if least else f"{seeds} seed{'s' if seeds > 1 else ''}"
    trials = f"{len(plan.least)} to {len(plan.jobs)}" if least else f"{len(plan.jobs)}"
    left = f"{'at most ' if least else ''}{len(plan.jobs) - done}"
    return f"{len(plan.cells)} cells, {repeats}, {trials} trials; {done} recorded, {left} to go" + (
        f", {len(blocked)} cannot run here" if blocked else ""
    )


def _cost_line(plan: Plan, results: dict[str, Any]) -> str:
    """Say what the least and the most trials cost, as far as recorded ones tell how long a trial takes."""
    recorded = (results[job.trial_id].cost for job in plan.jobs if job.trial_id in results)
    seconds = [cost.train_seconds for cost in recorded if cost is not None]
    if not seconds:
        return "what the least and the most cost is known once a trial is recorded"
    each, price = fmean(seconds) / 3600, plan.study.resources.price_per_hour
    least, most = (each * len(jobs) for jobs in (plan.least, plan.jobs))
    priced = f", {least * price:.3g} to {most * price:.3g} at {price:g} an hour" if price is not None else ""
    return f"{least:.3g} to {most:.3g} device hours of training, as the recorded trials took{priced}"


def _short(axis: str) -> str:
    """Shorten the two long axis names, so that a row fits a terminal."""
    return {"gradient_accumulation_steps": "accumulation", "neftune_noise_alpha": "alpha"}.get(axis, axis)


def _coordinate(cell: Cell, axis: str) -> str:
    label = escape(cell.coordinates[axis])
    return f"[bold]{label}[/]" if cell.factor == axis else label


def _state(cell: Cell, results: dict[str, Any], blocked: dict[str, Any]) -> str:
    outcomes = Counter(
        results[trial_id].result.outcome
        if trial_id in results
        else ("unsupported" if trial_id in blocked else "pending")
        for trial_id in cell.trials.values()
    )
    words = ", ".join(f"[{COLOURS[name]}]{count} {_words(name)}[/]" for name, count in outcomes.items())
    return ("baseline  " if cell.is_baseline else "control  " if cell.is_control else "") + words


def _trial_ids(cell: Cell, results: dict[str, Any], blocked: dict[str, Any]) -> str:
    def mark(trial_id: str) -> str:
        name = results[trial_id].result.outcome if trial_id in results else "pending"
        return f"[{COLOURS['unsupported' if trial_id in blocked else name]}]{trial_id}[/]"

    return " ".join(mark(trial_id) for trial_id in cell.trials.values())


def _words(outcome: str) -> str:
    return outcome.replace("_", " ")


def show_status(document: dict[str, Any], console: Console) -> None:
    """Print how far a study is."""
    console.print(f"[bold]{escape(document['study'])}[/]  {document['done']} of {document['planned']} done")
    for outcome, count in document["outcomes"].items():
        console.print(f"  [{COLOURS[outcome]}]{count:>5} {_words(outcome)}[/]", highlight=False)
    if document["running"]:
        console.print(f"  {document['running']:>5} running", highlight=False)
    show_problems(document["problems"], console)


def show_problems(problems: Iterable[object], console: Console) -> None:
    """Print, for each file that does not count, what is wrong with it; reading leaves it where it is."""
    for problem in problems:
        console.print(f"[red]does not count[/] {escape(str(problem))}", soft_wrap=True, highlight=False)


def show_verification(comparisons: list[Any], console: Console) -> None:
    """Print, for each trial that was rerun, whether every hash is the same."""
    if not comparisons:
        console.print("No finished trial to rerun.")
        return
    table = plain_table()
    names = list(comparisons[0].same)
    for header in ("trial", *names):
        table.add_column(header.removesuffix("_sha256").replace("_", " "))
    for one in comparisons:
        table.add_row(one.trial_id, *("[green]same[/]" if one.same[n] else "[red]differs[/]" for n in names))
    console.print(table)


def show_doctor(document: dict[str, Any], console: Console) -> None:
    """Print what this machine can do."""
    machine = document["machine"]
    console.print(
        f"[bold]{escape(machine['name'])}[/]  {machine['device']}, {machine['cores']} cores, "
        f"{machine['memory_bytes'] / GIB:.0f} GiB",
        highlight=False,
    )
    if not document["devices"]:
        console.print(
            "[dim]no accelerator: low precision is emulated, memory and speed claims are not run[/]"
        )
    for device in document["devices"]:
        capability = ".".join(map(str, device["compute_capability"]))
        console.print(
            f"  {escape(device['name'])}, {device['memory_bytes'] / GIB:.0f} GiB, compute {capability}"
        )
    console.print()
    formats = plain_table("Number formats")
    for header in ("format", "stored", "multiplied"):
        formats.add_column(header)
    for row in document["formats"]:
        formats.add_row(row["name"], "yes" if row["stored"] else "no", runs(row["multiplied"]))
    console.print(formats)
    console.print()
    levels = plain_table("Axes, on the embedded base")
    for header in ("axis", "level", "runs", "why not natively"):
        levels.add_column(header)
    for axis, rows in document["axes"].items():
        for row in rows:
            levels.add_row(_short(axis), row["level"], runs(row["runs"]), escape(row["reason"] or ""))
    console.print(levels)
    console.print()
    have = ", ".join(f"{name} {found}" for name, found in document["libraries"].items() if found)
    console.print(f"[dim]{escape(have)}[/]", highlight=False)


def runs(how: str) -> str:
    return {"native": "[green]native[/]", "emulated": "[yellow]emulated[/]"}.get(how, "[red]no[/]")


class Watch:
    """Follow a running study: a bar with the time left on a terminal, a line for each trial elsewhere."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self.console = console
        self.names = {
            trial_id: " ".join(label for axis, label in cell.coordinates.items() if _tells(cell, axis))
            for cell in plan.cells
            for trial_id in cell.trials.values()
        }
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("[dim]{task.fields[now]}[/]"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("starting", total=None, left="", now="")
        self.running: dict[str, str] = {}

    def __enter__(self) -> Watch:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, event: Event) -> None:
        """Take one event of the supervisor."""
        name = self._name(event)
        if event.kind in ("finished", "retried") and event.job:
            self.running.pop(event.job.trial_id, None)
            self.console.print(self._line(event, name), highlight=False, soft_wrap=True)
        elif event.kind in ("started", "progress") and event.job:
            at = f" {event.step}/{event.steps}" if event.steps else ""
            self.running[event.job.trial_id] = f"{name}{at}"
        elif event.kind == "look":
            self.console.print(f"[bold]{escape(event.message)}[/]", highlight=False, soft_wrap=True)
        elif event.kind == "problem":
            self.console.print(f"[red]set aside[/] {escape(event.message)}", soft_wrap=True)
        said = {"loading": "loading libraries", "waiting": "another run holds the rest"}
        self.bar.update(
            self.task,
            total=event.tally.planned,
            completed=event.tally.done,
            description=said.get(event.kind, "running"),
            left=time_left(event.tally.seconds_left),
            now="   ".join(self.running.values()),
        )

    def _name(self, event: Event) -> str:
        if event.job is None:
            return ""
        return escape(f"{self.names.get(event.job.trial_id, event.job.trial_id)} seed {event.job.trial.seed}")

    def _line(self, event: Event, name: str) -> str:
        outcome = event.outcome or event.kind
        took = f"{event.seconds:6.1f} s" if event.seconds is not None else " " * 8
        place = f"{event.tally.done:>{len(str(event.tally.planned))}}/{event.tally.planned}"
        again = ", again" if event.kind == "retried" else ""
        why = f"  [dim]{escape(event.message)}[/]" if event.message else ""
        return f"{place} [{COLOURS.get(outcome, 'red')}]{_words(outcome)}{again}[/] {took}  {name}{why}"


def _tells(cell: Cell, axis: str) -> bool:
    """Say whether an axis tells this cell from its neighbours: in one factor at a time only one does."""
    return cell.factor in (None, axis)


def time_left(seconds: float | None) -> str:
    """Write the time left as a person would say it."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"


def show_start(trials: Sequence[str], console: Console) -> None:
    """Print which trials a run would start."""
    count = f"{len(trials)} trial{'' if len(trials) == 1 else 's'} would start"
    console.print(f"{count}{': ' if trials else ''}{' '.join(trials)}", soft_wrap=True, highlight=False)


def show_summary(summary: Summary, report: object, console: Console) -> None:
    """Print how a run ended and where its report is."""
    counts = (
        ", ".join(f"{count} {_words(name)}" for name, count in summary.outcomes.items()) or "nothing recorded"
    )
    console.print(f"{counts}; {summary.started} started now, {summary.seconds:.0f} s", highlight=False)
    if summary.unsettled:
        console.print(f"[red]no outcome yet[/] {' '.join(summary.unsettled)}", soft_wrap=True)
    console.print(f"[bold]report[/] {escape(str(report))}", soft_wrap=True, highlight=False)


def show_error(error: ParibusError | OSError, console: Console) -> None:
    """Print what was wrong, where, and the way out; a disk that fills up names no file."""
    if isinstance(error, OSError):
        place = error.filename or "the disk of the output, the results, the cache or the temporary folder"
        error = ParibusError(error.strerror or str(error), place=Place(place), way_out=ANOTHER_PLACE)
    console.print(f"[bold red]error[/] {escape(str(error))}", soft_wrap=True, highlight=False)


@contextmanager
def steps(title: str, console: Console) -> Iterator[Callable[[int, int, float], None]]:
    """Show a bar for work that reports (step, steps, loss)."""
    with Progress(
        TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(), console=console,
    ) as bar:  # fmt: skip
        task = bar.add_task(title, total=None, loss="")

        def report(step: int, total: int, loss: float) -> None:
            bar.update(task, total=total, completed=step, loss=f"loss {loss:.3f}")

        yield report
