"""One host for each worker, joined by a switch over links of a known rate.

A host is a network namespace; its cable is shaped by the kernel (tbf) in both directions, like a
full-duplex link.  The coordinator is at the switch, one link from everybody.  Addresses are not
loopback, so connections and frames are what they are on real hosts: proven and tagged with a key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from dtd.address import Address
from scripts.benchrun.places import choose_congestion_control
from scripts.cluster.fault_proxy import FaultProxy
from scripts.cluster.local import COORDINATOR
from scripts.cluster.namespaces import Namespace

_SWITCH: Final = "switch"
_PORT: Final = "eth0"
_SWITCH_NUMBER: Final = 253
_CONTROL_PORT: Final = 7117
_DATA_PORT: Final = 7200
_BURST: Final = "128kb"
_QUEUE: Final = "1mb"

T = TypeVar("T")


class ShapedHosts:
    """`Place` for ranks, and `Network` (`scripts.cluster.networks`) for daemons.

    Args:
        workers: names of the workers; worker number i shares a host with rank i.
        rate: of each link in each direction, as `tc` writes it.
    """

    interface = _PORT

    def __init__(self, workers: Sequence[str], rate: str) -> None:
        self._numbers = {name: number for number, name in enumerate(workers)}
        self._switch = Namespace("net")
        self._hosts = [Namespace("net") for _ in workers]
        self.address = Address(_ip(_SWITCH_NUMBER), _CONTROL_PORT)
        self.proxies: dict[str, FaultProxy] = {}
        # What the harness asks the coordinator passes through lo, whatever the address.
        self._switch.run("ip", "link", "set", "dev", "lo", "up")
        self._switch.run("ip", "link", "add", "name", _SWITCH, "type", "bridge")
        self._switch.run("ip", "address", "add", f"{self.address.host}/24", "dev", _SWITCH)
        self._switch.run("ip", "link", "set", "dev", _SWITCH, "up")
        for number, host in enumerate(self._hosts):
            self._plug_in(number, host, rate)

    # --- Place -------------------------------------------------------------------------------

    def host(self, rank: int) -> str:
        """See `Place`."""
        return _ip(rank)

    def wrapped(self, who: int | str, command: Sequence[str]) -> list[str]:
        """See `Place` and `Network`."""
        if who == COORDINATOR:
            return self._switch.wrapped(command)
        number = self._numbers[who] if isinstance(who, str) else who
        return self._hosts[number].wrapped(command)

    # --- Network -----------------------------------------------------------------------------

    def arguments(self, name: str) -> list[str]:
        """See `Network`."""
        number = self._numbers[name]
        return [
            *("--coordinator", str(self.address)),
            *("--listen", f"{_ip(number)}:{_DATA_PORT}"),
            *("--advertise", f"{_ip(number)}:{_DATA_PORT}"),
        ]

    def inside(self, function: Callable[[], T]) -> T:
        """See `Network`."""
        return self._switch.inside(function)

    def close(self) -> None:
        """See `Network`."""
        for space in (self._switch, *self._hosts):
            space.close()

    # --- making it ---------------------------------------------------------------------------

    def _plug_in(self, number: int, host: Namespace, rate: str) -> None:
        cable = f"cable{number}"
        end = ("peer", "name", _PORT, "netns", host.path)
        self._switch.run("ip", "link", "add", "name", cable, "type", "veth", *end)
        self._switch.run("ip", "link", "set", "dev", cable, "master", _SWITCH, "up")
        host.run("ip", "link", "set", "dev", "lo", "up")
        host.inside(choose_congestion_control)
        host.run("ip", "link", "set", "dev", _PORT, "address", _hardware(number))
        host.run("ip", "address", "add", f"{_ip(number)}/24", "dev", _PORT)
        host.run("ip", "link", "set", "dev", _PORT, "up")
        for other in range(len(self._hosts)):
            if other != number:
                entry = (_ip(other), "lladdr", _hardware(other), "dev", _PORT)
                host.run("ip", "neighbour", "replace", *entry, "nud", "permanent")
        for space, device in ((self._switch, cable), (host, _PORT)):
            shape = ("tbf", "rate", rate, "burst", _BURST, "limit", _QUEUE)
            space.run("tc", "qdisc", "add", "dev", device, "root", *shape)


def _ip(number: int) -> str:
    return f"10.78.0.{number + 1}"


def _hardware(number: int) -> str:
    return f"02:00:00:00:01:{number:02x}"
