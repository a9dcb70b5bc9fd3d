"""The platform, and default paths: state directories, and the coordinator's socket on this host.

A coordinator on the same host needs no configuration: its socket is in the runtime directory that
systemd gives it, or in its state directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dtd.address import SocketPath
from dtd.errors import ConfigError, UsageError

SOCKET_NAME: Final = "control.sock"
COORDINATOR: Final = "coordinator"
_RUNTIME: Final = Path("/run")
_UNDER_RUNTIME: Final = Path("dtd") / COORDINATOR / SOCKET_NAME


def require_linux(system: str = sys.platform) -> None:
    """Raise `ConfigError` anywhere but on Linux; daemons call this before anything else."""
    if system != "linux":
        msg = f"dtd runs on Linux only, and this is {system}"
        raise ConfigError(msg, remedy="run it on a Linux host or in a Linux container")


def state_directory(leaf: str, environ: Mapping[str, str]) -> Path:
    """The default directory for everything that must survive a restart of a daemon."""
    if environ.get("STATE_DIRECTORY"):  # set by systemd; several are separated by colons
        return Path(environ["STATE_DIRECTORY"].split(":")[0])
    return _by_hand(leaf, environ)


def socket_place(state_dir: Path, environ: Mapping[str, str]) -> Path:
    """The default path of the coordinator's socket."""
    runtime = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]  # set by systemd, as above
    return (Path(runtime) if runtime else state_dir) / SOCKET_NAME


def find_sockets(environ: Mapping[str, str]) -> tuple[SocketPath, ...]:
    """The sockets of this host's coordinators, the user's own before the system's.

    Where there is none: the one that is to be expected.
    """
    places = []
    own = Path(environ.get("XDG_RUNTIME_DIR", ""))
    if own.is_absolute():
        places.append(own / _UNDER_RUNTIME)
    if not environ.get("STATE_DIRECTORY"):  # a service of systemd's has no home of a person
        places.append(_by_hand(COORDINATOR, environ) / SOCKET_NAME)
    places.append(_RUNTIME / _UNDER_RUNTIME)
    there = [place for place in places if _may_be_there(place)]
    expected = places[0] if environ.get("STATE_DIRECTORY") else places[-2]
    return tuple(SocketPath(str(place)) for place in there or [expected])


def operator_file(environ: Mapping[str, str]) -> Path:
    """The credential that this user's coordinator has created for connections from its own host."""
    return _by_hand(COORDINATOR, environ) / "pki" / "operator.credential"


def home_directory(*, remedy: str) -> Path:
    """The home directory of this user.

    Raises:
        UsageError: there is none; with the remedy.
    """
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError(
            f"user {os.getuid()} has no home directory, and HOME is not set", remedy=remedy
        ) from None


def config_home(*, remedy: str) -> Path:
    """The directory of this user's settings (XDG Base Directory Specification).

    Raises:
        UsageError: this user has no home directory; with the remedy.
    """
    given = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return given if given.is_absolute() else home_directory(remedy=remedy) / ".config"


def _by_hand(leaf: str, environ: Mapping[str, str]) -> Path:
    if os.geteuid() == 0 or not environ.get("HOME"):
        return Path("/var/lib/dtd") / leaf
    return Path(environ["HOME"]) / ".local/state/dtd" / leaf


def _may_be_there(place: Path) -> bool:
    """A user without access to the directory gets an error when connecting."""
    try:
        place.lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True
