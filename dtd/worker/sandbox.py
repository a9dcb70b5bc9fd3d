"""The strict sandbox: checks whether this process is in one, and which jobs require it.

A job's code runs in the worker's process, so the process cannot confine it.  systemd confines the
whole process (`systemd/etc/strict.conf.example`), but silently omits an address filter that the
kernel or container does not support.  So the worker attempts at its start what a job might, and
does not start if an attempt succeeds.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Final

from dtd.config import Sandbox
from dtd.errors import ConfigError

READ_ONLY: Final = ("/", "/etc", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/usr", "/var")
STRANGERS: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation, unused: packets to them go to the next router."""

_DISCARD: Final = 9


def check_sandbox(sandbox: Sandbox) -> None:
    """Check that jobs cannot do here what the setting promises that they cannot.

    Raises:
        ConfigError: they can, with all that was found.
    """
    holes = _holes(READ_ONLY, STRANGERS) if sandbox == "strict" else []
    if holes:
        raise ConfigError(
            f'sandbox = "strict", but from here {"; ".join(holes)}',
            remedy="run it as a system service with strict.conf (docs/operations.md, "
            '"A stricter sandbox")',
        )


def refuse_if_laxer(own: Sandbox, wanted: str) -> None:
    """Check that this worker may run a job's code.

    Args:
        own: the worker's sandbox.
        wanted: the job's.

    Raises:
        ConfigError: it may not.
    """
    if wanted == "strict" != own:
        raise ConfigError(
            'the job requires sandbox = "strict", and this worker has no such sandbox',
            remedy='set it up on the worker (docs/operations.md, "A stricter sandbox"), or leave'
            " the key out of the job file",
        )


def _holes(places: Sequence[str], strangers: Sequence[tuple[int, str]]) -> list[str]:
    """Describe the possible actions of a job."""
    writable = [place for place in places if _is_writable(place)]
    reached = [host for family, host in strangers if _can_send(family, host)]
    holes = [f"{', '.join(writable)} can be written to"] if writable else []
    return holes + (
        [f"addresses outside the cluster, such as {', '.join(reached)}, can be reached"]
        if reached
        else []
    )


def _is_writable(place: str) -> bool:
    """The file system is; permissions are another matter."""
    try:
        return not os.statvfs(place).f_flag & os.ST_RDONLY
    except OSError:  # it is hidden, or not there
        return False


def _can_send(family: int, host: str) -> bool:
    """A datagram gets out; systemd's filter and a host without a route refuse it at once."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as made:
            made.sendto(b"", (host, _DISCARD))
    except OSError:
        return False
    return True
