"""One Ethernet for the hosts: a bridge in a network namespace, and a cable of limited rate to each.

Nothing of it is in the machine's own network, and all of it vanishes with this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scripts.cluster.namespaces import Namespace

RATE: Final = "1gbit"
PORT: Final = "eth0"
_BRIDGE: Final = "lan"
_PREFIX: Final = "10.77.0."
_GATEWAY: Final = "10.77.0.254"
# What may be sent at once, and how long anything may wait in the queue.
_BURST: Final = "256kb"
_LATENCY: Final = "50ms"


class Lan:
    """Addresses and cables.

    Args:
        names: of the hosts.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._ips = {name: f"{_PREFIX}{number}" for number, name in enumerate(names, start=1)}
        self._hub = Namespace("net")
        self._spaces = {name: Namespace("net") for name in names}
        self._hub.run("ip", "link", "add", "name", _BRIDGE, "type", "bridge")
        self._hub.run("ip", "link", "set", "dev", _BRIDGE, "up")
        for name in names:
            self._lay_cable(name)

    def ip(self, name: str) -> str:
        """A host's address."""
        return self._ips[name]

    def path(self, name: str) -> str:
        """A path to a host's network namespace."""
        return self._spaces[name].path

    def neighbours(self, name: str) -> str:
        """Lines of /etc/hosts for all others."""
        return "".join(f"{ip} {other}\n" for other, ip in self._ips.items() if other != name)

    def pull_out(self, name: str) -> None:
        """Pull out a host's cable: nobody is told anything."""
        self._hub.run("ip", "link", "set", "dev", _socket(name), "down")

    def plug_in(self, name: str) -> None:
        """Undo `pull_out`."""
        self._hub.run("ip", "link", "set", "dev", _socket(name), "up")

    def close(self) -> None:
        """Let go of it."""
        for space in (*self._spaces.values(), self._hub):
            space.close()

    def _lay_cable(self, name: str) -> None:
        """Both ends of a host's cable, each of which sends at the rate and no faster."""
        space, socket = self._spaces[name], _socket(name)
        peer = ("peer", "name", PORT, "netns", space.path)
        self._hub.run("ip", "link", "add", "name", socket, "type", "veth", *peer)
        self._hub.run("ip", "link", "set", "dev", socket, "master", _BRIDGE, "up")
        space.run("ip", "address", "add", f"{self._ips[name]}/24", "dev", PORT)
        space.run("ip", "link", "set", "dev", "lo", "up")
        space.run("ip", "link", "set", "dev", PORT, "up")
        # To nobody, but a host knows by it which of its addresses is the one for others.
        space.run("ip", "route", "add", "default", "via", _GATEWAY)
        bucket = ("root", "tbf", "rate", RATE, "burst", _BURST, "latency", _LATENCY)
        self._hub.run("tc", "qdisc", "replace", "dev", socket, *bucket)
        space.run("tc", "qdisc", "replace", "dev", PORT, *bucket)


def _socket(name: str) -> str:
    return f"to-{name}"
