"""Networks between daemons, and the cutting of their links.

`Loopback` is plain: nothing can be cut.  `Proxied` puts a `FaultProxy` before every data port and
one between each worker and the coordinator's socket; it needs no privileges.  `Hosts` are kernel
namespaces.  Those of `CUTTABLE` can cut a link in one direction.
"""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from dtd.address import Address, SocketPath
from scripts.cluster.fault_proxy import TO_CALLER, TO_TARGET, Direction, FaultProxy
from scripts.cluster.namespaces import HUB, Ethernet

COORDINATOR: Final = "coordinator"
HOST: Final = "127.0.0.1"
# Below the ephemeral ports: a client that calls a port without a listener may get that very port
# as its own, and is then connected to itself.
_PORTS: Final = range(20_000, 32_000)
_HELD: Final[list[socket.socket]] = []
_CONTROL_PORT: Final = 7117
_DATA_PORT: Final = 7200
_PROXY_PORT: Final = 7201

T = TypeVar("T")


class Loopback:
    """One host, one loopback interface, nothing between the daemons.

    Attributes:
        address: the coordinator's, for itself and for its clients; over TCP all have credentials.
        proxies: one before the data port of each worker; may be empty.
    """

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="dtd-net-")
        self.address = self._socket(COORDINATOR)
        self.proxies: dict[str, FaultProxy] = {}

    def arguments(self, name: str) -> list[str]:
        """A worker's options that have to do with the network."""
        return ["--coordinator", str(self.address)]

    def wrapped(self, name: str, command: Sequence[str]) -> list[str]:
        """A daemon's command, to be run where its network is."""
        return [*command]

    def inside(self, function: Callable[[], T]) -> T:
        """Call a function where the coordinator can be reached."""
        return function()

    def close(self) -> None:
        """Let go of everything."""
        self._home.cleanup()

    def _socket(self, name: str) -> SocketPath:
        return SocketPath(str(Path(self._home.name) / f"{name}.sock"))


class Proxied(Loopback):
    """One loopback interface with a proxy on every way from daemon to daemon."""

    def __init__(self, workers: Sequence[str]) -> None:
        super().__init__()
        self._control: dict[str, FaultProxy] = {}
        self._listen: dict[str, Address] = {}
        for name in workers:
            self._listen[name] = Address(HOST, reserved_port())
            self.proxies[name] = FaultProxy(Address(HOST, 0), self._listen[name])
            self._control[name] = FaultProxy(self._socket(name), self.address)
            self.proxies[name].start()
            self._control[name].start()

    def arguments(self, name: str) -> list[str]:
        return [
            *("--coordinator", str(self._control[name].address)),
            *("--listen", str(self._listen[name])),
            *("--advertise", str(self.proxies[name].address)),
        ]

    def cut(self, sender: str, receiver: str) -> None:
        """From now on nothing that one daemon sends arrives at the other one."""
        for proxy, direction, caller in self._ways(sender, receiver):
            proxy.silence(direction, caller=caller)

    def restore(self, sender: str, receiver: str) -> None:
        """Undo `cut`."""
        for proxy, direction, caller in self._ways(sender, receiver):
            proxy.unsilence(direction, caller=caller)

    def _ways(self, sender: str, receiver: str) -> list[tuple[FaultProxy, Direction, str]]:
        """The proxies, directions and callers by which bytes travel from one daemon to another."""
        if receiver == COORDINATOR:
            return [(self._control[sender], TO_TARGET, "")]
        if sender == COORDINATOR:
            return [(self._control[receiver], TO_CALLER, "")]
        return [
            (self.proxies[receiver], TO_TARGET, sender),
            (self.proxies[sender], TO_CALLER, receiver),
        ]

    def close(self) -> None:
        for proxy in (*self.proxies.values(), *self._control.values()):
            proxy.close()
        super().close()


class Hosts:
    """A host for each worker, and the coordinator at the hub, one link from each.

    Addresses are not loopback, so every caller proves its identity with a credential and every
    frame carries a keyed tag.

    Args:
        workers: names of all workers that there may ever be.
        proxied: with a proxy before each data port, for what a cable cannot do.
        shape: of each link in each direction, as `tc qdisc` writes it.
        shapes: of the links of some workers, by name, instead.
    """

    def __init__(
        self,
        workers: Sequence[str],
        *,
        proxied: bool = False,
        shape: Sequence[str] = (),
        shapes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.ethernet = Ethernet(workers, shape=shape, shapes=shapes)
        self.address = Address(self.ethernet.ip(HUB), _CONTROL_PORT)
        self.proxies: dict[str, FaultProxy] = {}
        for name in workers if proxied else ():
            ip, enter = self.ethernet.ip(name), self.ethernet.spaces[name].enter
            self.proxies[name] = FaultProxy(
                Address(ip, _PROXY_PORT), Address(ip, _DATA_PORT), enter=enter
            )
            self.proxies[name].start()

    def arguments(self, name: str) -> list[str]:
        ip = self.ethernet.ip(name)
        port = _PROXY_PORT if name in self.proxies else _DATA_PORT
        return [
            *("--coordinator", str(self.address)),
            *("--listen", f"{ip}:{_DATA_PORT}"),
            *("--advertise", f"{ip}:{port}"),
        ]

    def wrapped(self, name: str, command: Sequence[str]) -> list[str]:
        return self.ethernet.spaces[_host(name)].wrapped(command)

    def inside(self, function: Callable[[], T]) -> T:
        return self.ethernet.spaces[HUB].inside(function)

    def cut(self, sender: str, receiver: str) -> None:
        self.ethernet.cut(_host(sender), _host(receiver))

    def restore(self, sender: str, receiver: str) -> None:
        self.ethernet.restore(_host(sender), _host(receiver))

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()
        self.ethernet.close()


Network: TypeAlias = Loopback | Hosts
CUTTABLE: Final = (Proxied, Hosts)


def _host(name: str) -> str:
    return HUB if name == COORDINATOR else name


def reserved_port() -> int:
    """A port that no other process is given while this one lives; a daemon may listen there.

    A bound socket that allows reuse, and does not listen, lets only such sockets listen as allow
    reuse, too.  Others that look for a port set that option after they have bound.
    """
    while True:
        port = random.choice(_PORTS)  # noqa: S311 - not a secret
        held = socket.socket()
        try:
            held.bind((HOST, port))
        except OSError:
            held.close()
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _HELD.append(held)
        return port
