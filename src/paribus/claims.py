"""The command on claims: what two documents say, what was found, and what each verdict rests on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paribus.about import Json
from paribus.errors import ParibusError
from paribus.screen import err, out, print_json

if TYPE_CHECKING:
    from paribus.compare.ledger import Ruling

app = typer.Typer()


@app.command()
def claims(
    name: Annotated[str | None, typer.Argument(metavar="ID", help="One claim, as `A69`, in full.")] = None,
    document: Annotated[str, typer.Option(help="Only those of `article` or `chapter`.")] = "",
    table: Annotated[str, typer.Option(help="Only those of one of the documents' tables.")] = "",
    verdict: Annotated[str, typer.Option(help="Only one verdict, as `not run`.")] = "",
    check: Annotated[
        bool, typer.Option("--check", help="Compute the exact ones again; exit 1 where one differs.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Compute the exact ones and record what came out.")
    ] = False,
    experiments: Annotated[Path, typer.Option(metavar="DIR", help="Where the studies stand.")] = Path(
        "experiments"
    ),
    results: Annotated[Path, typer.Option(metavar="DIR", help="Where their results stand.")] = Path(
        "results/reference"
    ),
    as_json: Json = False,
) -> None:
    """List what two documents claim, with the verdict on each and the file it rests on."""
    from paribus import claims_view
    from paribus.compare.rulings import ruled

    if check or record:
        raise typer.Exit(_computed_again(write=record))
    rulings = ruled(experiments, results, [name] if name else ())
    chosen = [ruling for ruling in rulings if _wanted(ruling, document, table, verdict)]
    if not chosen:
        raise ParibusError("no claim is left", way_out="paribus claims without options lists all.")
    if as_json:
        print_json([ruling.to_json() for ruling in chosen])
    elif name:
        claims_view.show_claim(chosen[0], out)
    else:
        claims_view.show_claims(chosen, out)


def _wanted(ruling: Ruling, document: str, table: str, verdict: str) -> bool:
    row = ruling.row
    asked = ((document, row.document), (table, row.table or ""), (verdict, ruling.verdict))
    return all(not wanted or wanted.lower() == found.lower() for wanted, found in asked)


def _computed_again(*, write: bool) -> int:
    """Compute every exact row; say what differs from the record, or record it."""
    from importlib.resources import files

    from paribus.compare import recompute

    known, functions = recompute.recorded(), recompute.rows()
    with err.status("computing"):
        found = {name: function() for name, function in functions.items()}
    if write:
        path = Path(str(files("paribus.compare"))) / recompute.FILE
        path.write_text(recompute.as_recorded(found), encoding="utf-8")
        out.print(str(path), soft_wrap=True)
        return 0
    wrong = {name: one.differs(known[name]) for name, one in found.items() if name in known}
    missing = [name for name in found if name not in known]
    lost = [name for name in known if name not in found]
    for name, faults in wrong.items():
        for fault in faults:
            out.print(f"{name}: {fault}", highlight=False, soft_wrap=True)
    for name in missing:
        out.print(f"{name}: computed, but not recorded", highlight=False)
    for name in lost:
        out.print(f"{name}: recorded, but nothing computes it", highlight=False)
    bad = missing + lost + [name for name, faults in wrong.items() if faults]
    out.print(f"{len(found) - len(set(bad) - set(lost))} of {len(found)} rows as recorded", highlight=False)
    return 1 if bad else 0
