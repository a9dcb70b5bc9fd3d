"""Declares dtdctl's commands about tokens and credentials; `dtd.ctl.access` does them."""

from __future__ import annotations

from typing import Annotated

import typer

from dtd.ctl import access as access_commands

token_app = typer.Typer(help="Tokens with which hosts and people join.", no_args_is_help=True)

TokenRole = Annotated[
    str, typer.Option("--role", metavar="worker|operator|viewer", help="Who can join with it.")
]


def add_access_commands(app: typer.Typer) -> None:
    """Make the commands known."""
    app.add_typer(token_app, name="token")
    for command in (join, credentials, revoke):
        app.command()(command)


def _end(exit_code: int) -> None:
    raise typer.Exit(exit_code)


def join(
    context: typer.Context,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="What `token create` printed.")],
    name: Annotated[str, typer.Option("--name", help="Who to be; default: user and host.")] = "",
) -> None:
    """Get a credential, so that dtdctl can be used on this host."""
    _end(access_commands.join(context.obj, token, name=name))


@token_app.command("create")
def create_token(
    context: typer.Context,
    role: TokenRole = "worker",
    life: Annotated[
        str, typer.Option("--ttl", metavar="24h|never", help="How long it is good for.")
    ] = "24h",
) -> None:
    """Make a token with which a host or a person can join; it is shown this once."""
    _end(access_commands.create_token(context.obj, role=role, life=life))


@token_app.command("list")
def list_tokens(context: typer.Context) -> None:
    """List all tokens, without their secrets."""
    _end(access_commands.list_tokens(context.obj))


@token_app.command("revoke")
def revoke_token(
    context: typer.Context,
    token: Annotated[str, typer.Argument(metavar="ID", help="As `token list` shows it.")],
) -> None:
    """Let nobody join with a token any more; who has joined stays."""
    _end(access_commands.revoke_token(context.obj, token))


def credentials(context: typer.Context) -> None:
    """List the credentials that were issued."""
    _end(access_commands.list_credentials(context.obj))


def revoke(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME|SERIAL", help="As `credentials` shows it.")],
) -> None:
    """Take back a credential: its connections end at once, its workers are evicted."""
    _end(access_commands.revoke(context.obj, name))
