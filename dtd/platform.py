"""Where dtd runs: Linux only, said in one sentence instead of a traceback from a missing call."""

from __future__ import annotations

import sys

from dtd.errors import ConfigError


def require_linux(system: str = sys.platform) -> None:
    """Raise `ConfigError` anywhere but on Linux; daemons call this before anything else."""
    if system != "linux":
        msg = f"dtd runs on Linux only, and this is {system}"
        raise ConfigError(msg, remedy="run it on a Linux host or in a Linux container")
