"""The host that services are installed on: its systemd, its users, and where dtd lies on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dtd.errors import DtdError, UsageError

DAEMONS: Final = ("dtd-coordinator", "dtd-worker")
_HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108
"""Directories that ProtectHome= and PrivateTmp= hide from a service."""

_RUNNING: Final = Path("/run/systemd/system")
_PATIENCE_S: Final = 120.0


def daemons_directory() -> Path:
    """Return the directory of the running environment's daemons.

    Raises:
        UsageError: they do not lie beside dtdctl.
    """
    places = [Path(sys.argv[0]).absolute().parent, Path(sysconfig.get_path("scripts"))]
    for place in places:
        if all((place / name).is_file() for name in DAEMONS):
            return place
    raise UsageError(
        f"{' and '.join(DAEMONS)} are not in {places[-1]}",
        remedy="install dtd with pip, and use the dtdctl that it installs",
    )


def hidden_place(daemons: Path) -> str:
    """Return a path of dtd's environment that a system service could not see; empty if none."""
    for place in (daemons, Path(sys.executable).resolve()):
        if any(place.is_relative_to(hidden) for hidden in _HIDDEN):
            return str(place)
    return ""


def systemd_version() -> int:
    """The version of this host's systemd; 0 if it has none."""
    if shutil.which("systemctl") is None:
        return 0
    match = re.search(r"systemd ([0-9]+)", run(["systemctl", "--version"]))
    return int(match[1]) if match else 0


def cannot_run(command: Sequence[str]) -> str:
    """Why a command of systemd's cannot be run here; empty: it can."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed"
    if command[0] == "systemctl" and not _manager(for_user="--user" in command).exists():
        return "systemd is not running here"
    return ""


def _manager(*, for_user: bool) -> Path:
    """Return a path that exists while systemd runs: on this host, or for this user."""
    if not for_user:
        return _RUNNING
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent") / "systemd/private"


def run(command: Sequence[str]) -> str:
    """Run a command of systemd's and return its output.

    Raises:
        DtdError: it failed.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        raise DtdError(f"{' '.join(command)} did not end within {_PATIENCE_S:g} s") from None
    if done.returncode != 0:
        why = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise DtdError(
            f"{' '.join(command)} failed: {why}", remedy="fix that, and run this command again"
        )
    return done.stdout
