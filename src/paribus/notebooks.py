"""The command that runs the notebooks of `analysis/` and writes each as one page that opens offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paribus.compare.rulings import EXPERIMENTS, RESULTS
from paribus.errors import ParibusError, nearest
from paribus.screen import err, out

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbformat import NotebookNode

app = typer.Typer()
MISSING = "the notebooks need jupytext, papermill, nbconvert and ipykernel"


@app.command()
def notebooks(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these, as `02_overfitting`.")
    ] = None,
    study: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another study in place of each notebook's own.")
    ] = None,
    margin: Annotated[float | None, typer.Option(help="Another margin of equivalence.")] = None,
    family: Annotated[str | None, typer.Option(help="Adjust p over `axis` or `study`.")] = None,
    analysis: Annotated[Path, typer.Option(metavar="DIR", help="Where the scripts stand.")] = Path(
        "analysis"
    ),
    experiments: Annotated[Path, typer.Option(metavar="DIR", help="Where the studies stand.")] = EXPERIMENTS,
    results: Annotated[Path, typer.Option(metavar="DIR", help="Where their results stand.")] = RESULTS,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where the pages are written.")] = Path(
        "results/notebooks"
    ),
) -> None:
    """Run the notebooks that set our tables beside the documents' and write them as pages."""
    given: dict[str, Any] = {"study": study, "margin": margin, "family": family}
    given |= {
        "experiments": None if experiments == EXPERIMENTS else str(experiments),
        "results": None if results == RESULTS else str(results),
    }
    changed = {name: value for name, value in given.items() if value is not None}
    failed = 0
    for script in _chosen(analysis, names or []):
        with err.status(script.stem):
            error = run(script, changed, to / f"{script.stem}.html")
        failed += error is not None
        if error:
            err.print(f"[red]{script.stem}[/]: {error}", highlight=False, soft_wrap=True)
        out.print(str(to / f"{script.stem}.html"), soft_wrap=True)
    raise typer.Exit(1 if failed else 0)


def _chosen(analysis: Path, names: list[str]) -> list[Path]:
    scripts = {path.stem: path for path in sorted(analysis.glob("*.py"))}
    if not scripts:
        raise ParibusError(f"{analysis} holds no notebook", way_out="Name their folder: --analysis DIR.")
    for name in names:
        if name not in scripts:
            raise ParibusError(f"there is no notebook {name!r}", way_out=nearest(name, scripts))
    return [scripts[name] for name in names] or list(scripts.values())


def run(script: Path, parameters: Mapping[str, Any], page: Path) -> str | None:
    """Run one script as a notebook and write its page; return what its failing cell said, if one failed.

    The page of a notebook that failed shows how far it came. Raises ParibusError where the libraries are
    not installed.
    """
    import tempfile

    try:
        import jupytext
        import nbformat
        from papermill import execute_notebook
        from papermill.exceptions import PapermillExecutionError
    except ImportError as error:
        raise ParibusError(MISSING, way_out="pip install 'paribus[analysis]'.") from error
    with tempfile.TemporaryDirectory() as folder:
        source, done = Path(folder) / "source.ipynb", Path(folder) / "done.ipynb"
        notebook = jupytext.read(script)
        notebook.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python"}
        nbformat.write(notebook, source)
        failure = None
        try:
            execute_notebook(
                source, done, dict(parameters), progress_bar=False, extra_arguments=["--log-level=ERROR"]
            )
        except PapermillExecutionError as error:
            failure = f"cell {error.exec_count}: {error.ename}: {error.evalue}"
        _write(nbformat.read(done, as_version=4), page)
    return failure


def _write(notebook: NotebookNode, page: Path) -> None:
    """Write a notebook that has run as one page in the look of the reports."""
    from nbconvert import HTMLExporter

    from paribus.compare.page import page as whole
    from paribus.sources.cache import write_whole

    for cell in notebook.cells:  # warnings of libraries are about this machine, not about the study
        cell["outputs"] = [one for one in cell.get("outputs", []) if one.get("name") != "stderr"]
    exporter = HTMLExporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True)
    body, _ = exporter.from_notebook_node(notebook)
    heading = str(notebook.cells[0].source).partition("\n")[0].lstrip("# ")
    page.parent.mkdir(parents=True, exist_ok=True)
    write_whole(page, whole(heading, f'<main class="notebook">{body}</main>', {}).encode())
