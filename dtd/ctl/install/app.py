"""The commands of dtdctl that install and remove the services of this host.

This file only declares them, like `dtd.ctl.app`; each hands over to the function of the same name
in `dtd.ctl.install.command`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dtd.ctl.install import command
from dtd.ctl.install.service_files import Parts
from dtd.places import config_home

CoordinatorPart = Annotated[
    bool, typer.Option("--coordinator", help="The coordinator; default: both.")
]
WorkerPart = Annotated[bool, typer.Option("--worker", help="The workers; default: both.")]
ForUser = Annotated[
    bool, typer.Option("--user", help="Install as services of this user, without root.")
]
Prefix = Annotated[
    Path | None,
    typer.Option("--prefix", metavar="DIR", help="Install into another root directory."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]


def add_install_commands(app: typer.Typer) -> None:
    """Add `install` and `uninstall`."""
    for one in (install, uninstall):
        app.command()(one)


def install(
    context: typer.Context,
    coordinator: CoordinatorPart = False,
    worker: WorkerPart = False,
    user: ForUser = False,
    prefix: Prefix = None,
    dry_run: DryRun = False,
) -> None:
    """Install the daemons as systemd services; repeatable, and keeps files that you changed."""
    made = _installation(coordinator, worker, user, prefix, dry_run)
    raise typer.Exit(command.install(context.obj, made))


def uninstall(
    context: typer.Context,
    coordinator: CoordinatorPart = False,
    worker: WorkerPart = False,
    user: ForUser = False,
    prefix: Prefix = None,
    dry_run: DryRun = False,
    purge: Annotated[
        bool,
        typer.Option("--purge", help="Also remove settings, credentials, jobs and checkpoints."),
    ] = False,
) -> None:
    """Stop the services and remove what `install` wrote."""
    made = _installation(coordinator, worker, user, prefix, dry_run)
    raise typer.Exit(command.uninstall(context.obj, made, purge=purge))


def _installation(
    coordinator: bool, worker: bool, user: bool, prefix: Path | None, dry_run: bool
) -> command.Installation:
    both = coordinator == worker
    parts = Parts(
        coordinator=coordinator or both,
        worker=worker or both,
        config_home=config_home(remedy="set HOME") if user else None,
    )
    return command.Installation(parts=parts, prefix=prefix and prefix.absolute(), dry_run=dry_run)
