"""A network namespace for each daemon, joined by a bridge: links are cut by the kernel.

To the daemons these are hosts like any others: their addresses are not loopback, so whoever calls
proves who he is (`scripts.cluster.access`) and every frame carries a keyed tag.  Every neighbour's
hardware address is written down beforehand; to cut a direction is to write down one that nobody
has.  Nothing is told to either side, as when a cable is pulled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from dtd.address import Address
from scripts.cluster.fault_proxy import FaultProxy
from scripts.cluster.local import COORDINATOR
from scripts.cluster.namespaces import Namespace

_PREFIX: Final = "10.77.0."
_HUB: Final = "hub"
_PORT: Final = "eth0"
_NOBODY: Final = 255
_CONTROL_PORT: Final = 7117
_DATA_PORT: Final = 7200
_PROXY_PORT: Final = 7201

T = TypeVar("T")


class Namespaced:
    """One namespace for the coordinator, which holds the bridge, and one for each worker.

    Args:
        workers: names of all workers that there may ever be.
        proxied: with a proxy before each data port, for what a cable cannot do.
    """

    def __init__(self, workers: Sequence[str], *, proxied: bool) -> None:
        self._numbers = {name: index + 1 for index, name in enumerate((COORDINATOR, *workers))}
        self._spaces = {name: Namespace("net") for name in self._numbers}
        self.address = Address(self._ip(COORDINATOR), _CONTROL_PORT)
        self.proxies: dict[str, FaultProxy] = {}
        self._join()
        for name in workers if proxied else ():
            ip = self._ip(name)
            self.proxies[name] = FaultProxy(
                Address(ip, _PROXY_PORT), Address(ip, _DATA_PORT), enter=self._spaces[name].enter
            )
            self.proxies[name].start()

    def arguments(self, name: str) -> list[str]:
        """See `Network`."""
        ip = self._ip(name)
        port = _PROXY_PORT if name in self.proxies else _DATA_PORT
        return [
            *("--coordinator", str(self.address)),
            *("--listen", f"{ip}:{_DATA_PORT}"),
            *("--advertise", f"{ip}:{port}"),
        ]

    def wrapped(self, name: str, command: Sequence[str]) -> list[str]:
        """See `Network`."""
        return self._spaces[name].wrapped(command)

    def inside(self, function: Callable[[], T]) -> T:
        """See `Network`."""
        return self._spaces[COORDINATOR].inside(function)

    def cut(self, sender: str, receiver: str) -> None:
        """See `CuttableNetwork`."""
        self._tell(sender, receiver, _NOBODY)

    def restore(self, sender: str, receiver: str) -> None:
        """See `CuttableNetwork`."""
        self._tell(sender, receiver, self._numbers[receiver])

    def close(self) -> None:
        """See `Network`."""
        for proxy in self.proxies.values():
            proxy.close()
        for space in self._spaces.values():
            space.close()

    def _ip(self, name: str) -> str:
        return f"{_PREFIX}{self._numbers[name]}"

    def _join(self) -> None:
        """A bridge with one cable to each worker, and everybody's address book."""
        hub = self._spaces[COORDINATOR]
        hub.run("ip", "link", "add", "name", _HUB, "type", "bridge")
        for name, space in self._spaces.items():
            if name != COORDINATOR:
                cable = f"cable{self._numbers[name]}"
                peer = ("peer", "name", _PORT, "netns", space.path)
                hub.run("ip", "link", "add", "name", cable, "type", "veth", *peer)
                hub.run("ip", "link", "set", "dev", cable, "master", _HUB, "up")
        for name, space in self._spaces.items():
            self._set_up(name, space)
        for sender in self._numbers:
            for receiver in self._numbers:
                if sender != receiver:
                    self.restore(sender, receiver)

    def _set_up(self, name: str, space: Namespace) -> None:
        device, number = _device(name), self._numbers[name]
        space.run("ip", "link", "set", "dev", "lo", "up")
        space.run("ip", "link", "set", "dev", device, "address", _hardware(number))
        space.run("ip", "address", "add", f"{self._ip(name)}/24", "dev", device)
        space.run("ip", "link", "set", "dev", device, "up")

    def _tell(self, sender: str, receiver: str, number: int) -> None:
        entry = (self._ip(receiver), "lladdr", _hardware(number), "dev", _device(sender))
        self._spaces[sender].run("ip", "neighbour", "replace", *entry, "nud", "permanent")


def _device(name: str) -> str:
    return _HUB if name == COORDINATOR else _PORT


def _hardware(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"
