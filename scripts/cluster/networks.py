"""How the daemons of a chaos run reach each other, and how they are kept from it.

`Loopback` is plain: nothing can be cut.  `Proxied` puts a `FaultProxy` before every data port and
one between each worker and the coordinator's socket; it needs no privileges.
`scripts.cluster.namespaced` has the third one: kernel namespaces.  Who cuts asks for a
`CuttableNetwork`.
"""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar, runtime_checkable

from dtd.address import Address, Endpoint, SocketPath
from scripts.cluster.fault_proxy import TO_CALLER, TO_TARGET, FaultProxy
from scripts.cluster.local import COORDINATOR

HOST: Final = "127.0.0.1"
# Below the ephemeral ports: a client that calls a port where nobody listens may get that very port
# as its own, and is then connected to itself.
_PORTS: Final = range(20_000, 32_000)

T = TypeVar("T")


class Network(Protocol):
    """Where daemons listen, and how they are reached.

    Attributes:
        proxies: one before the data port of each worker; may be empty.
    """

    proxies: dict[str, FaultProxy]

    @property
    def address(self) -> Endpoint:
        """The coordinator's, for itself and for its clients; over TCP all have credentials."""
        ...

    def arguments(self, name: str) -> list[str]:
        """A worker's options that have to do with the network."""
        ...

    def wrapped(self, name: str, command: Sequence[str]) -> list[str]:
        """A daemon's command, to be run where its network is."""
        ...

    def inside(self, function: Callable[[], T]) -> T:
        """Call a function where the coordinator can be reached."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


@runtime_checkable
class CuttableNetwork(Network, Protocol):
    """One that also decides who hears whom."""

    def cut(self, sender: str, receiver: str) -> None:
        """From now on nothing that one daemon sends arrives at the other one."""
        ...

    def restore(self, sender: str, receiver: str) -> None:
        """Undo `cut`."""
        ...


class Loopback:
    """One host, one loopback interface, nothing between the daemons."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="dtd-net-")
        self.address = _socket(self._home, COORDINATOR)
        self.proxies: dict[str, FaultProxy] = {}

    def arguments(self, name: str) -> list[str]:
        """See `Network`."""
        return ["--coordinator", str(self.address)]

    def wrapped(self, name: str, command: Sequence[str]) -> list[str]:
        """See `Network`."""
        return [*command]

    def inside(self, function: Callable[[], T]) -> T:
        """See `Network`."""
        return function()

    def close(self) -> None:
        """See `Network`."""
        self._home.cleanup()


class Proxied:
    """One loopback interface with a proxy on every way from daemon to daemon.

    Args:
        workers: names of all workers that there may ever be.
    """

    def __init__(self, workers: Sequence[str]) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="dtd-net-")
        self.address = _socket(self._home, COORDINATOR)
        self.proxies: dict[str, FaultProxy] = {}
        self._control: dict[str, FaultProxy] = {}
        self._listen: dict[str, Address] = {}
        for name in workers:
            self._listen[name] = Address(HOST, free_port())
            self.proxies[name] = _proxy(Address(HOST, 0), self._listen[name])
            self._control[name] = _proxy(_socket(self._home, name), self.address)

    def arguments(self, name: str) -> list[str]:
        """See `Network`."""
        return [
            *("--coordinator", str(self._control[name].address)),
            *("--listen", str(self._listen[name])),
            *("--advertise", str(self.proxies[name].address)),
        ]

    def wrapped(self, name: str, command: Sequence[str]) -> list[str]:
        """See `Network`."""
        return [*command]

    def inside(self, function: Callable[[], T]) -> T:
        """See `Network`."""
        return function()

    def cut(self, sender: str, receiver: str) -> None:
        """See `CuttableNetwork`."""
        if receiver == COORDINATOR:
            self._control[sender].silence(TO_TARGET)
        elif sender == COORDINATOR:
            self._control[receiver].silence(TO_CALLER)
        else:
            self.proxies[receiver].silence(TO_TARGET, caller=sender)
            self.proxies[sender].silence(TO_CALLER, caller=receiver)

    def restore(self, sender: str, receiver: str) -> None:
        """See `CuttableNetwork`."""
        if receiver == COORDINATOR:
            self._control[sender].unsilence(TO_TARGET)
        elif sender == COORDINATOR:
            self._control[receiver].unsilence(TO_CALLER)
        else:
            self.proxies[receiver].unsilence(TO_TARGET, caller=sender)
            self.proxies[sender].unsilence(TO_CALLER, caller=receiver)

    def close(self) -> None:
        """See `Network`."""
        for proxy in (*self.proxies.values(), *self._control.values()):
            proxy.close()
        self._home.cleanup()


def free_port() -> int:
    """A port on which nobody listens now."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 - not a secret
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port


def _socket(home: tempfile.TemporaryDirectory[str], name: str) -> SocketPath:
    return SocketPath(str(Path(home.name) / f"{name}.sock"))


def _proxy(listen: Endpoint, target: Endpoint) -> FaultProxy:
    proxy = FaultProxy(listen, target)
    proxy.start()
    return proxy
