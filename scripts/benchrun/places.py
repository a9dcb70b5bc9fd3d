"""Where the ranks of a benchmark run: on one host, or on a host each behind a link of known rate.

`own_network` puts this process into a network namespace of its own first.  There it chooses the
congestion control of all that it starts, and neither touches the machine's settings nor meets its
traffic; the namespace ends with the last process inside.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from ipaddress import ip_interface
from typing import Final, Protocol

from scripts.benchrun.results import CONGESTION_FILE
from scripts.cluster.namespaces import Namespace, may_make

RENO: Final = "reno"
LOOPBACK_HOST: Final = "127.0.0.1"
_PUBLIC: Final = ip_interface("10.77.0.1/24")
"""On the own loopback interface, but none of 127.0.0.0/8: as fast, and keyed."""


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
    """All ranks here, and they know it."""

    interface = "lo"

    def host(self, rank: int) -> str:
        """See `Place`."""
        del rank
        return LOOPBACK_HOST

    def wrapped(self, rank: int, command: Sequence[str]) -> list[str]:
        """See `Place`."""
        return [*command]


class OtherHosts(OneHost):
    """All ranks here, but as far as addresses tell, each is on a host of its own."""

    def host(self, rank: int) -> str:
        """See `Place`."""
        return str(_PUBLIC.ip + rank)


def own_network() -> bool:
    """Move this process, which has one thread yet, into a network of its own; False: it may not."""
    if not may_make("net"):
        return False
    Namespace("net").enter()
    subprocess.run(["ip", "link", "set", "dev", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", str(_PUBLIC), "dev", "lo"], check=True)
    choose_congestion_control()
    return True


def choose_congestion_control() -> None:
    """The same for everybody in the network namespace of the calling thread."""
    CONGESTION_FILE.write_text(RENO)
