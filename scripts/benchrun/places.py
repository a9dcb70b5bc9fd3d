"""Where the ranks of a benchmark run: on one host, or on a host each behind a link of known rate.

`own_network` puts this process into a network namespace of its own first.  There it chooses the
congestion control of all that it starts, and neither touches the machine's settings nor meets its
traffic; the namespace ends with the last process inside.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Final, Protocol

from scripts.benchrun.machine import CONGESTION_FILE
from scripts.chaosrun.namespaces import Namespace, may_make

RENO: Final = "reno"
LOOPBACK_HOST: Final = "127.0.0.1"
PUBLIC_HOST: Final = "10.77.0.1"
"""An address of the own loopback interface that is none of 127.0.0.0/8: as fast, and keyed."""


class Place(Protocol):
    """Where ranks run.

    Attributes:
        interface: the network interface over which a rank reaches the others.
    """

    interface: str

    def host(self, rank: int) -> str:
        """The address at which a rank listens."""
        ...

    def wrapped(self, rank: int, command: Sequence[str]) -> list[str]:
        """The command that runs `command` where this rank belongs."""
        ...


class OneHost:
    """All ranks here.

    Args:
        host: the address at which they listen.
    """

    interface = "lo"

    def __init__(self, host: str = LOOPBACK_HOST) -> None:
        self._host = host

    def host(self, rank: int) -> str:
        """See `Place`."""
        return self._host

    def wrapped(self, rank: int, command: Sequence[str]) -> list[str]:
        """See `Place`."""
        return [*command]


def own_network() -> bool:
    """Move this process, which has one thread yet, into a network of its own; False: it may not."""
    if not may_make("net"):
        return False
    Namespace("net").enter()
    subprocess.run(["ip", "link", "set", "dev", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{PUBLIC_HOST}/32", "dev", "lo"], check=True)
    choose_congestion_control()
    return True


def choose_congestion_control() -> None:
    """The same for everybody in the network namespace of the calling thread."""
    CONGESTION_FILE.write_text(RENO)
