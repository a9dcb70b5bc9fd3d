"""The addresses of this host that a worker offers to others, best first.

Interfaces of hardware come before virtual ones, such as VPNs and bridges of containers, and faster
ones before slower ones, as the kernel gives their rate.  Loopback and link-local addresses are left
out: other hosts cannot use them.  Whether an address can be reached is found out by those that call
it (`dtd.net.addresses.attempts`).
"""

from __future__ import annotations

import array
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dtd.wire.fields import HOSTS

_CLASS: Final = Path("/sys/class/net")
_IPV6: Final = Path("/proc/self/net/if_inet6")
_SIOCGIFCONF: Final = 0x8912
_REQUEST: Final = struct.Struct("16s4x4s16x")  # struct ifreq with a struct sockaddr_in
_CONF: Final = struct.Struct("iP")  # struct ifconf
_MOST_REQUESTS: Final = 256
_TEMPORARY: Final = 0x01
_NOT_USABLE: Final = 0x20 | 0x40 | 0x08
"""IFA_F_DEPRECATED, IFA_F_TENTATIVE, IFA_F_DADFAILED (linux/if_addr.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface.

    Attributes:
        is_virtual: it has no hardware, nor does any interface below it.
        mbit_per_s: its rate; 0: unknown, as that of wireless ones.
    """

    hosts: tuple[str, ...]
    is_virtual: bool
    mbit_per_s: int


def offered(interfaces: Iterable[Interface], *, ipv4_only: bool) -> tuple[str, ...]:
    """The addresses for other workers, best first; at most `HOSTS`.

    Of each interface the first address of either kind, so that one with many does not take the
    place of another interface.
    """
    best = sorted(interfaces, key=lambda one: (one.is_virtual, -one.mbit_per_s))
    found: dict[str, None] = {}
    for one in best:
        usable = [host for host in one.hosts if _is_for_others(host)]
        for is_ipv6 in (False, True)[: 1 if ipv4_only else 2]:
            found.update(dict.fromkeys([h for h in usable if (":" in h) == is_ipv6][:1]))
    return tuple(found)[:HOSTS]


def _is_for_others(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return not (address.is_loopback or address.is_link_local or address.is_multicast)


# --- what the kernel says -------------------------------------------------------------------------


def interfaces() -> list[Interface]:
    """The interfaces of this host that are up and have addresses."""
    hosts: dict[str, list[str]] = {}
    for name, host in (*_ipv4(), *_ipv6()):
        hosts.setdefault(name, []).append(host)
    return [
        Interface(hosts=tuple(own), is_virtual=not _has_hardware(name), mbit_per_s=_rate(name))
        for name, own in hosts.items()
    ]


def _ipv4() -> list[tuple[str, str]]:
    """(interface, address) of all IPv4 addresses (netdevice(7))."""
    memory = array.array("B", bytes(_REQUEST.size * _MOST_REQUESTS))
    start, size = memory.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, _SIOCGIFCONF, _CONF.pack(size, start))
    used, _ = _CONF.unpack(answer)
    return [
        (os.fsdecode(name.rstrip(b"\0")).partition(":")[0], socket.inet_ntoa(address))
        for name, address in _REQUEST.iter_unpack(memory[:used])
    ]


def _ipv6() -> list[tuple[str, str]]:
    """(interface, address) of all usable IPv6 addresses; permanent ones first (proc(5))."""
    try:
        lines = [os.fsdecode(line).split() for line in _IPV6.read_bytes().splitlines()]
    except OSError:  # this host has no IPv6
        return []
    lines = [line for line in lines if not int(line[4], 16) & _NOT_USABLE]
    lines.sort(key=lambda line: int(line[4], 16) & _TEMPORARY)
    return [(line[5], str(ipaddress.IPv6Address(bytes.fromhex(line[0])))) for line in lines]


def _has_hardware(name: str) -> bool:
    """Whether an interface is of hardware, or above one that is: a bond, a VLAN, a bridge."""
    folder = _CLASS / name
    if (folder / "device").exists():
        return True
    return any(_has_hardware(one.name.removeprefix("lower_")) for one in folder.glob("lower_*"))


def _rate(name: str) -> int:
    """Rate of an interface in Mbit/s, 0 if the kernel does not know it."""
    try:
        return max(0, int((_CLASS / name / "speed").read_text()))
    except (OSError, ValueError):
        return 0
