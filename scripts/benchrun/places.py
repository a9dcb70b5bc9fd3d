"""Hosts of a benchmark's ranks: one for all, or one each behind a link of known rate.

`own_network` puts this process into a network namespace of its own first.  There it chooses the
congestion control of all that it starts, and neither touches the machine's settings nor meets its
traffic; the namespace ends with the last process inside.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from ipaddress import ip_interface
from typing import Final, Protocol

from scripts.benchrun.results import CONGESTION_FILE
from scripts.cluster.namespaces import PORT, Namespace, may_make
from scripts.cluster.networks import Hosts

RENO: Final = "reno"
_BURST: Final = "128kb"
_QUEUE: Final = "1mb"
LOOPBACK_HOST: Final = "127.0.0.1"
_PUBLIC: Final = ip_interface("10.77.0.1/24")
"""On the own loopback interface, but none of 127.0.0.0/8: as fast, and keyed."""


class Place(Protocol):
    """A place for ranks.

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
        """Implement `Place`."""
        del rank
        return LOOPBACK_HOST

    def wrapped(self, rank: int, command: Sequence[str]) -> list[str]:
        """Implement `Place`."""
        return [*command]


class OtherHosts(OneHost):
    """All ranks here, but as far as addresses tell, each is on a host of its own."""

    def host(self, rank: int) -> str:
        """Implement `Place`."""
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


class ShapedHosts(Hosts):
    """`Place` for ranks and `Network` for daemons: a host each behind a link of a known rate.

    The kernel shapes each cable (tbf) in both directions, like a full-duplex link.

    Args:
        workers: names of the workers; worker number i shares a host with rank i.
        rate: of each link in each direction, as `tc` writes it.
        rates: of the links of some workers, by name, instead.
    """

    interface = PORT

    def __init__(
        self, workers: Sequence[str], rate: str, rates: Mapping[str, str] | None = None
    ) -> None:
        shapes = {name: _shape(one) for name, one in (rates or {}).items()}
        super().__init__(workers, shape=_shape(rate), shapes=shapes)
        self._names = [*workers]
        for name in workers:
            self.ethernet.spaces[name].inside(choose_congestion_control)

    def host(self, rank: int) -> str:
        """Implement `Place`."""
        return self.ethernet.ip(self._names[rank])

    def wrapped(self, who: int | str, command: Sequence[str]) -> list[str]:
        """Implement `Place` and `Network`."""
        return super().wrapped(who if isinstance(who, str) else self._names[who], command)


def _shape(rate: str) -> tuple[str, ...]:
    return ("tbf", "rate", rate, "burst", _BURST, "limit", _QUEUE)
