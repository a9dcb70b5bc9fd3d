"""Declares dtdctl's commands about registered models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Registered models: versions of weights that outlive their jobs.", no_args_is_help=True
)

Reference = Annotated[
    str,
    typer.Argument(metavar="NAME[@VERSION|@ALIAS]", help="A model; without @ its newest version."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def add_model_commands(into: typer.Typer) -> None:
    """Make the commands known."""
    into.add_typer(app, name="models")


@app.command()
def register(
    context: typer.Context,
    job: Annotated[
        str, typer.Argument(metavar="JOB[@STEP]", help="Whose checkpoint; default: the newest.")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model; new or known.")],
    best: Annotated[
        str, typer.Option("--best", metavar="METRIC", help="The best checkpoint by this metric.")
    ] = "",
    mode: Annotated[
        str,
        typer.Option(
            "--mode", metavar="max|min", help="Which is better; default: the job's setting."
        ),
    ] = "",
    copies: Annotated[
        int,
        typer.Option("--copies", metavar="N", min=1, max=16, help="How many workers keep it."),
    ] = 2,
    card: Annotated[
        Path | None,
        typer.Option("--card", metavar="FILE.md", help="Text for its model card."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="Also write it to DIR/NAME/vN."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="S", min=0.0, help="How long to wait for a copy."),
    ] = 120.0,
) -> None:
    """Register a job's checkpoint as the next version of a model."""
    from dtd.ctl.models.register import Wanted, register

    wanted = Wanted(
        job=job, name=name, best=best, mode=mode, copies=copies, card=card, export=export
    )
    raise typer.Exit(register(context.obj, wanted, timeout_s=timeout))


@app.command("list")
def list_models(context: typer.Context) -> None:
    """List all versions of all models."""
    from dtd.ctl.models.show import list_models

    raise typer.Exit(list_models(context.obj))


@app.command()
def show(
    context: typer.Context,
    model: Reference,
    card: Annotated[
        bool, typer.Option("--card", help="Print its model card, as Markdown.")
    ] = False,
) -> None:
    """Show a version: files, metrics, job, data, code, copies; or its model card."""
    from dtd.ctl.models.show import show_card, show_model

    raise typer.Exit((show_card if card else show_model)(context.obj, model))


@app.command()
def alias(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="NAME@ALIAS", help="For example digits@production.")
    ],
    version: Annotated[
        int, typer.Argument(metavar="VERSION", min=0, help="A number; 0 removes the alias.")
    ],
) -> None:
    """Have an alias stand for a version of a model."""
    from dtd.ctl.models.change import set_alias

    raise typer.Exit(set_alias(context.obj, model, version))


@app.command()
def card(
    context: typer.Context,
    model: Reference,
    file: Annotated[
        Path, typer.Argument(metavar="FILE.md", help="The text; - reads it from stdin.")
    ],
) -> None:
    """Replace the text of a version's model card; its record stays."""
    from dtd.ctl.models.change import write_card

    raise typer.Exit(write_card(context.obj, model, file))


@app.command()
def fetch(
    context: typer.Context,
    model: Reference,
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Destination; default: ./NAME-vN.")
    ] = None,
) -> None:
    """Fetch a version, check its digest, and show how to load it."""
    from dtd.ctl.models.fetch import fetch

    raise typer.Exit(fetch(context.obj, model, directory))


@app.command()
def copy(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(metavar="NAME[@VERSION|@ALIAS]", help="A version, or the whole model."),
    ],
) -> None:
    """Have other workers make the copies that disconnected workers keep, or that failed."""
    from dtd.ctl.models.change import copy

    raise typer.Exit(copy(context.obj, model))


@app.command()
def delete(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(metavar="NAME[@VERSION|@ALIAS]", help="A version, or the whole model."),
    ],
    yes: Yes = False,
) -> None:
    """Delete a version, or a model with all of its versions, and the copies on workers."""
    from dtd.ctl.models.change import delete

    raise typer.Exit(delete(context.obj, model, confirmed=yes))
