"""Declares dtdctl's commands for access control and the audit log."""

from __future__ import annotations

from typing import Annotated

import typer

from dtd.ctl.access import commands as access_commands
from dtd.ctl.access.audit import show_audit

token_app = typer.Typer(help="Tokens with which hosts and people join.", no_args_is_help=True)

authority_app = typer.Typer(help="The cluster's certificate authority.", no_args_is_help=True)

TokenRole = Annotated[
    str,
    typer.Option(
        "--role", metavar="worker|operator|viewer", help="Role of hosts or users that join with it."
    ),
]


def add_access_commands(app: typer.Typer) -> None:
    """Make the commands known."""
    app.add_typer(token_app, name="token")
    app.add_typer(authority_app, name="authority")
    for command in (join, credentials, revoke, audit):
        app.command()(command)


def _end(exit_code: int) -> None:
    raise typer.Exit(exit_code)


def join(
    context: typer.Context,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="Token printed by `token create`.")],
    name: Annotated[
        str, typer.Option("--name", help="Name of the credential; default: user and host.")
    ] = "",
) -> None:
    """Get a credential, so that dtdctl can be used on this host."""
    _end(access_commands.join(context.obj, token, name=name))


@token_app.command("create")
def create_token(
    context: typer.Context,
    role: TokenRole = "worker",
    life: Annotated[
        str, typer.Option("--ttl", metavar="24h|never", help="Time until the token expires.")
    ] = "24h",
    uses: Annotated[
        int, typer.Option("--uses", min=1, max=256, help="Number of times it can be used.")
    ] = 1,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Name that can join with it, once; may be repeated."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the credential of that name; needs --name.")
    ] = False,
) -> None:
    """Create a token with which a host or a user can join; it is shown only once."""
    _end(
        access_commands.create_token(
            context.obj, role=role, life=life, uses=uses, names=name or (), replaces=replace
        )
    )


@token_app.command("list")
def list_tokens(context: typer.Context) -> None:
    """List all tokens, without their secrets."""
    _end(access_commands.list_tokens(context.obj))


@token_app.command("revoke")
def revoke_token(
    context: typer.Context,
    token: Annotated[str, typer.Argument(metavar="ID", help="As `token list` shows it.")],
) -> None:
    """Revoke a token, so that it can no longer be used to join; existing members remain."""
    _end(access_commands.revoke_token(context.obj, token))


def credentials(context: typer.Context) -> None:
    """List the credentials that were issued."""
    _end(access_commands.list_credentials(context.obj))


def revoke(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME|SERIAL", help="As `credentials` shows it.")],
) -> None:
    """Revoke a credential: its connections end at once, its workers are evicted."""
    _end(access_commands.revoke(context.obj, name))


def audit(
    context: typer.Context,
    since: Annotated[
        str, typer.Option("--since", metavar="AGO|TIME", help='Such as "90m", "2d", "2026-11-22".')
    ] = "",
    who: Annotated[
        str, typer.Option("--who", metavar="NAME|SERIAL", help="Only requests by this caller.")
    ] = "",
    what: Annotated[
        str, typer.Option("--what", metavar="WORD", help='Only requests such as "cancel".')
    ] = "",
    verify: Annotated[
        bool, typer.Option("--verify", help="Check that no entry is missing or changed.")
    ] = False,
) -> None:
    """List the audit log: who changed what, from where, with which result."""
    _end(show_audit(context.obj, since=since, who=who, what=what, verifies=verify))


@authority_app.command("show")
def show_authority(context: typer.Context) -> None:
    """Show the authority's fingerprint and until when it is valid."""
    _end(access_commands.show_authority(context.obj))
