"""Commands of `dtd-coordinator` besides serving: `init`, `backup` and `restore`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dtd.config import load_coordinator_config
from dtd.coordinator.advertised import advertised
from dtd.coordinator.audit_log import command_entry, enter_command
from dtd.coordinator.store.backup import back_up
from dtd.coordinator.store.restore import restore
from dtd.errors import ConfigError
from dtd.security.authority import DIRECTORY, open_authority, open_data_key
from dtd.security.private_files import make_private_directory


def _backup(state_dir: Path, file: Path) -> str:
    missing = enter_command(state_dir, command_entry("BACKUP", {"file": str(file)}))
    size_bytes = back_up(state_dir, file)
    entered = f"; it could not be entered in the audit log: {missing}" if missing else ""
    return (
        f"{file}: {size_bytes} bytes, the state of {state_dir}; it holds the cluster's keys, so"
        f" keep it where only you can read it{entered}"
    )


def _restore(state_dir: Path, file: Path) -> str:
    epoch = restore(file, state_dir)
    return (
        f"{state_dir}: restored, epoch {epoch}; start it with `dtd-coordinator --state-dir"
        f" {state_dir}`.  Workers then accept it, and no coordinator of an earlier epoch.  Tokens "
        "in the backup are void; hosts that joined after the backup must join again; what was "
        "revoked after it must be revoked again: see `dtdctl credentials`"
    )


INIT: Final = "init"


class Command(NamedTuple):
    """A command on a state directory.

    Attributes:
        run: runs it on the directory and the file that is named; returns what to print.
        description: of its help.
    """

    run: Callable[[Path, Path], str]
    description: str


COMMANDS: Final[dict[str, Command]] = {
    "backup": Command(
        _backup, "Write the coordinator's state to FILE; the coordinator may be running."
    ),
    "restore": Command(_restore, "Restore a backup into an empty state directory, in a new epoch."),
}


def run_init(arguments: Sequence[str]) -> int:
    """Make state directory and authority unless they are there; print the join command.

    Raises:
        DtdError: it failed.
    """
    parser = argparse.ArgumentParser(
        prog="dtd-coordinator init",
        description="Create the cluster's authority, and print the command with which hosts join.",
    )
    parser.add_argument("--config", metavar="FILE", help="TOML settings")
    parser.add_argument("--listen", metavar="HOST:PORT", help="control address")
    parser.add_argument("--advertise", metavar="HOST[:PORT]", help="address for others")
    parser.add_argument("--state-dir", metavar="DIR", help="the coordinator's state directory")
    config = load_coordinator_config(vars(parser.parse_args(arguments)), os.environ)
    if config.listen is None or config.listen.port == 0:
        raise ConfigError(
            "listen: no address with a port is given, so a token could not contain one",
            remedy="give one here or in the settings: --listen 0.0.0.0:7117",
        )
    directory = config.state_dir / DIRECTORY
    make_private_directory(config.state_dir)
    authority = open_authority(directory)
    authority.equip(advertised(config.advertise, config.listen))
    open_data_key(directory)
    if config.listen.is_loopback:
        sys.stderr.write(
            f"{config.listen} can be reached from this host only; to serve other hosts, use "
            f"--listen 0.0.0.0:{config.listen.port}\n"
        )
    token = authority.first_token()
    if token is None:
        sys.stderr.write("the first token was revoked; create another with `dtdctl token create`\n")
    else:
        sys.stdout.write(f"dtd-worker join {token.word()}\n")
    return 0


def run_command(arguments: Sequence[str]) -> int:
    """Run one of `COMMANDS`; returns the exit code.

    Raises:
        DtdError: it failed; the sentence is for the person who typed it.
    """
    name = arguments[0]
    if name == INIT:
        return run_init(arguments[1:])
    command = COMMANDS[name]
    parser = argparse.ArgumentParser(
        prog=f"dtd-coordinator {name}", description=command.description
    )
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--config", metavar="FILE", help="TOML settings")
    parser.add_argument("--state-dir", metavar="DIR", help="the coordinator's state directory")
    given = parser.parse_args(arguments[1:])
    flags = {"config": given.config, "state_dir": given.state_dir}
    config = load_coordinator_config(flags, os.environ)
    sys.stderr.write(f"{command.run(config.state_dir, given.file.absolute())}\n")
    return 0
