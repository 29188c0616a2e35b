"""The command line: a thin call each. Documents go to stdout, all else to stderr.

Exit codes: 0 done, 1 a trial was killed or crashed or a check failed, 2 bad input, 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from paribus import about, claims, imports, notebooks, scores, screen
from paribus.about import Json
from paribus.errors import ParibusError
from paribus.opened import RESULTS, Results, StudyPath, check_tasks, opened
from paribus.screen import err, out, print_json

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Ablations of LLM fine-tuning, all else being equal: plan, run, score, compare.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def run(
    study: StudyPath,
    results: Results = RESULTS,
    max_workers: Annotated[
        int | None, typer.Option(min=1, help="Trials at a time. Default: one a core, or one a GPU.")
    ] = None,
    retry: Annotated[
        str, typer.Option(metavar="OUTCOMES", help="Run these again: killed, crashed, or both by a comma.")
    ] = "",
    only: Annotated[
        str, typer.Option(metavar="IDS", help="Only trials whose id begins with one of these.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be started and stop.")] = False,
    accept_change: Annotated[
        bool, typer.Option("--accept-change", help="Go on although a fixed value changed under results.")
    ] = False,
) -> None:
    """Run every trial that has no recorded outcome yet, then show the table and write the report."""
    from paribus.compare import adaptive, tables
    from paribus.compare.report import write_report
    from paribus.conduct.adaptive import run as conduct
    from paribus.plan import lock
    from paribus.probe import machine
    from paribus.run.options import Options
    from paribus.run.preparation import would_start

    plan, store = opened(study, results)
    check_tasks(plan)
    options = Options.parse(max_workers, retry, only, accept_change=accept_change)
    here = machine()
    screen.show_plan(plan, store, here, err)
    scores.show_tasks(plan, store, err)
    lock.check_change(plan, store.root, accept=accept_change)
    if dry_run:
        starting = would_start(adaptive.needed(plan, store), store, here, options)
        screen.show_start([job.trial_id for job in starting], out)
        return
    with screen.Watch(plan, err) as watch:
        summary = conduct(plan, store, here, options, watch)
    if summary.interrupted:
        err.print("Stopped. Nothing is lost: the same command goes on from here.")
        raise typer.Exit(130)
    tables.terminal(plan, store, out)
    report_path = write_report(plan, store, store.root / "report.html")
    screen.show_summary(summary, report_path, out)
    raise typer.Exit(summary.exit_code)


@app.command()
def plan(study: StudyPath, results: Results = RESULTS, as_json: Json = False) -> None:
    """Show the trials a study needs and what it will be able to see, without running any."""
    from paribus.compare.planned import lines, planned_power
    from paribus.plan.preflight import obstacles
    from paribus.probe import machine

    planned, store = opened(study, results)
    check_tasks(planned)
    power = planned_power(planned, store)
    if as_json:
        document = planned.to_json(obstacles(planned, machine()))
        print_json(document | {"power": power.to_json() if power else None})
    else:
        screen.show_plan(planned, store, machine(), out, every_trial=True)
        scores.show_tasks(planned, store, out)
        for line in lines(planned, power):
            out.print(line, soft_wrap=True, highlight=False, markup=False)


@app.command()
def status(study: StudyPath, results: Results = RESULTS, as_json: Json = False) -> None:
    """Show how far a study is: planned, done, and counts by outcome."""
    from paribus.compare import adaptive
    from paribus.probe import machine
    from paribus.run.pending import status as status_of

    planned, store = opened(study, results)
    document = status_of(adaptive.needed(planned, store), store, machine())
    if as_json:
        print_json(document)
    else:
        screen.show_status(document, out)


@app.command()
def table(
    study: StudyPath,
    results: Results = RESULTS,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
) -> None:
    """Show the comparison table of what is recorded."""
    from paribus.compare import tables

    if as_json + as_csv + as_latex > 1:
        raise ParibusError("--json, --csv and --latex exclude each other", way_out="Give one of them.")
    planned, store = opened(study, results)
    screen.show_problems(store.problems, err)
    if as_json:
        print_json(tables.rows(planned, store))
    elif as_csv:
        sys.stdout.write(tables.csv(planned, store))
    elif as_latex:
        sys.stdout.write(tables.latex(planned, store))
    else:
        tables.terminal(planned, store, out)


@app.command()
def report(
    study: StudyPath,
    results: Results = RESULTS,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Where to write the page.")] = None,
) -> None:
    """Write the report as one HTML file that opens offline."""
    from paribus.compare.report import write_report

    planned, store = opened(study, results)
    screen.show_problems(store.problems, err)
    out.print(str(write_report(planned, store, to or store.root / "report.html")), soft_wrap=True)


@app.command()
def verify(
    study: StudyPath,
    results: Results = RESULTS,
    sample: Annotated[int, typer.Option(min=1, help="How many finished trials to rerun.")] = 5,
) -> None:
    """Rerun finished trials in scratch and compare the hashes of order, weights and loss curve."""
    from paribus.probe import machine
    from paribus.run.verify import verify as rerun

    planned, store = opened(study, results)
    with err.status("rerunning"):
        comparisons = rerun(planned, store, machine(), sample)
    screen.show_verification(comparisons, out)
    raise typer.Exit(0 if comparisons and all(one.identical for one in comparisons) else 1)


@app.command()
def data(study: StudyPath, as_json: Json = False) -> None:
    """Show what a study trains on: rendered examples with their loss mask, lengths, overlap."""
    from paribus.plan.study import Study
    from paribus.train import inspect

    inspection = inspect.inspect(Study.read(study))
    if as_json:
        print_json(inspection.to_json())
    else:
        inspect.show(inspection, out)


@app.command()
def init(
    model: Annotated[str, typer.Option(help="A model directory, a hub name, or 'embedded'.")],
    data: Annotated[str, typer.Option(help="A jsonl, json, csv or parquet file, a hub name, or 'embedded'.")],
    to: Annotated[Path, typer.Option("--out", help="The folder of the new study.")] = Path(
        "experiments/first"
    ),
) -> None:
    """Write a sane first study for your own model and data."""
    from paribus.sources.init import write_first_study

    for line in write_first_study(model, data, to):
        out.print(line, soft_wrap=True)


app.add_typer(scores.app)
app.add_typer(claims.app)
app.add_typer(imports.app, name="import")
app.add_typer(notebooks.app)
app.add_typer(about.app)


def main() -> None:
    """Run the command line; what a user wrote wrongly ends in a message and exit 2, never a traceback."""
    try:
        app()
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ParibusError, OSError) as error:  # what the user wrote, or a file, a folder or a disk
        screen.show_error(error, err)
        sys.exit(2)


if __name__ == "__main__":
    main()
