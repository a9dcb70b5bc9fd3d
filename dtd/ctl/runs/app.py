"""Declares dtdctl's commands that compare and label runs."""

from __future__ import annotations

from typing import Annotated

import typer

JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, as `jobs` lists it.")]
Tags = Annotated[list[str], typer.Argument(metavar="TAG...", help="Words to find jobs again by.")]

tag_app = typer.Typer(
    help="Tags of jobs: `jobs --tag TAG` lists those that have it.", no_args_is_help=True
)


def add_run_commands(app: typer.Typer) -> None:
    """Make the commands known."""
    app.add_typer(tag_app, name="tag")
    for command in (compare, note):
        app.command()(command)


def compare(
    context: typer.Context,
    jobs: Annotated[
        list[str], typer.Argument(metavar="JOB JOB...", help="Two jobs or more, by their ids.")
    ],
    names: Annotated[
        str,
        typer.Option(
            "--names", metavar="A,B", help="These figures; default: the loss and evaluations."
        ),
    ] = "",
    points: Annotated[
        int, typer.Option("--points", metavar="N", min=2, max=200, help="Points of a curve.")
    ] = 60,
) -> None:
    """Compare jobs: settings, code, data, environment, final and best figures, curves."""
    from dtd.ctl.runs.compare import compare_jobs

    wanted = tuple(name for name in names.split(",") if name)
    raise typer.Exit(compare_jobs(context.obj, jobs, names=wanted, points=points))


@tag_app.command("add")
def add_tags(context: typer.Context, job: JobId, tags: Tags) -> None:
    """Add tags to a job."""
    from dtd.ctl.runs.annotate import change_tags

    raise typer.Exit(change_tags(context.obj, job, add=tags))


@tag_app.command("remove")
def remove_tags(context: typer.Context, job: JobId, tags: Tags) -> None:
    """Remove tags from a job."""
    from dtd.ctl.runs.annotate import change_tags

    raise typer.Exit(change_tags(context.obj, job, remove=tags))


def note(
    context: typer.Context,
    job: JobId,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help='The note; "" removes the one that is there.')
    ],
) -> None:
    """Write a note about a job; it replaces the one before."""
    from dtd.ctl.runs.annotate import write_note

    raise typer.Exit(write_note(context.obj, job, text))
