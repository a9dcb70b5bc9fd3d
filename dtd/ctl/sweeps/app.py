"""Declares `dtdctl sweep SWEEP.toml` and `dtdctl sweep begin|status|list|cancel`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

SweepId = Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep's id, as `list` shows it.")]


class _BeginsByDefault(TyperGroup):
    """`sweep FILE.toml` is short for `sweep begin FILE.toml`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A word that is no command is a file if it looks like one."""
        if args and args[0] not in self.commands and args[0].endswith(".toml"):
            args = ["begin", *args]
        return super().resolve_command(ctx, args)


sweep_app = typer.Typer(
    help="Try a job with many settings: `sweep SWEEP.toml` begins.",
    no_args_is_help=True,
    cls=_BeginsByDefault,
)


@sweep_app.command()
def begin(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="The sweep.")],
    ship: Annotated[
        bool, typer.Option("--ship/--no-ship", help="Send the task's own package along.")
    ] = True,
) -> None:
    """Check a sweep and begin it; the coordinator carries it out, also across its restarts."""
    from dtd.ctl.sweeps.commands import begin_sweep

    raise typer.Exit(begin_sweep(context.obj, path, ships=ship))


@sweep_app.command()
def status(context: typer.Context, sweep: SweepId) -> None:
    """Show a sweep: its trials, the best one, and which settings matter."""
    from dtd.ctl.sweeps.commands import show_sweep

    raise typer.Exit(show_sweep(context.obj, sweep))


@sweep_app.command("list")
def list_all(context: typer.Context) -> None:
    """List the sweeps, the newest first."""
    from dtd.ctl.sweeps.commands import list_sweeps

    raise typer.Exit(list_sweeps(context.obj))


@sweep_app.command()
def cancel(context: typer.Context, sweep: SweepId) -> None:
    """Cancel a sweep and the jobs of its trials."""
    from dtd.ctl.sweeps.commands import cancel_sweep

    raise typer.Exit(cancel_sweep(context.obj, sweep))
