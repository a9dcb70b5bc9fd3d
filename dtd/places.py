"""Where dtd runs: Linux only, said in one sentence instead of a traceback from a missing call."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dtd.address import SocketPath
from dtd.errors import ConfigError


def require_linux(system: str = sys.platform) -> None:
    """Raise `ConfigError` anywhere but on Linux; daemons call this before anything else."""
    if system != "linux":
        msg = f"dtd runs on Linux only, and this is {system}"
        raise ConfigError(msg, remedy="run it on a Linux host or in a Linux container")


# --- where daemons keep their state, and where the coordinator's socket is found on this host ---
#
# Nobody has to be told of a coordinator on the same host: its socket lies in the runtime directory
# that systemd gives it, or in its state directory.


SOCKET_NAME: Final = "control.sock"
COORDINATOR: Final = "coordinator"
_RUNTIME: Final = Path("/run")
_UNDER_RUNTIME: Final = Path("dtd") / COORDINATOR / SOCKET_NAME


def state_directory(leaf: str, environ: Mapping[str, str]) -> Path:
    """Where a daemon keeps what must survive a restart, unless it is told otherwise."""
    if environ.get("STATE_DIRECTORY"):  # set by systemd; several are separated by colons
        return Path(environ["STATE_DIRECTORY"].split(":")[0])
    return _by_hand(leaf, environ)


def socket_place(state_dir: Path, environ: Mapping[str, str]) -> Path:
    """Where the coordinator's socket goes, unless it is told otherwise."""
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
    """The credential that a coordinator of this user's has made for calls from its own host."""
    return _by_hand(COORDINATOR, environ) / "pki" / "operator.credential"


def _by_hand(leaf: str, environ: Mapping[str, str]) -> Path:
    if os.geteuid() == 0 or not environ.get("HOME"):
        return Path("/var/lib/dtd") / leaf
    return Path(environ["HOME"]) / ".local/state/dtd" / leaf


def _may_be_there(place: Path) -> bool:
    """Who may not look into the directory is told so when he calls."""
    try:
        place.lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True
