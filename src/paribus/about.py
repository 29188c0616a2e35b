"""Commands that are about this installation and take no results: doctor, techniques, formats, embedded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paribus import screen
from paribus.screen import err, out, print_json

app = typer.Typer()
embedded = typer.Typer(no_args_is_help=True, help="The tiny base model that ships with paribus.")
app.add_typer(embedded, name="embedded")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine can do: devices, formats, and which level of each axis runs here."""
    from paribus.doctor import examine

    with err.status("asking torch"):
        document = examine()
    if as_json:
        print_json(document)
    else:
        screen.show_doctor(document, out)


@app.command()
def techniques(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A technique, as `lora`, or an axis.")
    ] = None,
    study: Annotated[
        Path | None, typer.Option(metavar="STUDY", help="Judge them on this study's model, not the embedded.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List every technique: settings, where it runs on this machine, paper. With a name, explain one."""
    from paribus import catalogue, catalogue_view
    from paribus.probe import machine

    listed = catalogue.entries(machine(), catalogue.setting_of(study) if study else None)
    chosen = catalogue.named(name, listed) if name else listed
    if as_json:
        print_json([entry.to_json() for entry in chosen])
    elif name is None:
        catalogue_view.show_techniques(chosen, out)
    else:
        for entry in chosen:
            catalogue_view.show_technique(entry, out)


@app.command(context_settings={"ignore_unknown_options": True})
def formats(
    values: Annotated[
        list[str] | None, typer.Argument(metavar="VALUE", help="Numbers, as 0.1, -6.5, 1e-8, inf or nan.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what each number format holds: bits, range, steps. With values, what each makes of them."""
    from paribus import formats_view, number_formats

    document = number_formats.document(values or [])
    if as_json:
        print_json(document)
    elif values:
        formats_view.show_values(document, out)
    else:
        formats_view.show_formats(document, out)


@embedded.command("rebuild")
def rebuild(
    folder: Annotated[Path, typer.Argument(help="Where to write the base; must not hold one.")],
) -> None:
    """Pretrain the embedded base and its tokenizer again from nothing, in a fixed number of steps."""
    from paribus.embedded.pretrain import rebuild as build

    with screen.steps("pretraining", err) as progress:
        build(folder, progress=progress)
    out.print(str(folder), soft_wrap=True)
