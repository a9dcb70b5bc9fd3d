"""The addresses of a worker's data port, and the one at which it has answered before."""

from __future__ import annotations

from dtd.address import Address
from dtd.wire import messages as m

Reachable = m.Member | m.DataSource | m.PartHolder | m.Probe | m.Measure
"""A worker with the addresses of its data port, as messages have it."""


def addresses(one: Reachable) -> tuple[Address, ...]:
    """Return the addresses of a data port, best first."""
    return tuple(Address(host, one.port) for host in (one.host, *one.others))


class Routes:
    """The address at which each worker answered last; it is tried first.  From any thread."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}

    def addresses(self, one: Reachable) -> tuple[Address, ...]:
        known = self._hosts.get(one.name)
        return tuple(sorted(addresses(one), key=lambda address: address.host != known))

    def answered(self, one: Reachable, address: Address) -> None:
        """The worker has completed a handshake at this address."""
        self._hosts[one.name] = address.host
