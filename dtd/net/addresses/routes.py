"""The addresses of a worker's data port, and the one at which it has answered before."""

from __future__ import annotations

from typing import Protocol

from dtd.address import Address


class DataPort(Protocol):
    """The addresses of a worker's data port, as messages have them."""

    @property
    def host(self) -> str:
        """The host of its first address."""
        ...

    @property
    def port(self) -> int:
        """The port of all addresses."""
        ...

    @property
    def others(self) -> tuple[str, ...]:
        """The hosts of further addresses, best first."""
        ...


class NamedPort(DataPort, Protocol):
    """The data port of a worker whose name is known."""

    @property
    def name(self) -> str:
        """The worker's name."""
        ...


def addresses(one: DataPort) -> tuple[Address, ...]:
    """Return the addresses of a data port, best first."""
    return tuple(Address(host, one.port) for host in (one.host, *one.others))


class Routes:
    """The address at which each worker answered last; it is tried first.  From any thread."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}

    def addresses(self, one: NamedPort) -> tuple[Address, ...]:
        """Return the addresses of a worker, best first."""
        known = self._hosts.get(one.name)
        return tuple(sorted(addresses(one), key=lambda address: address.host != known))

    def answered(self, one: NamedPort, address: Address) -> None:
        """The worker has completed a handshake at this address."""
        self._hosts[one.name] = address.host
