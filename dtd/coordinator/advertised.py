"""The addresses at which others reach the coordinator, for tokens and credentials."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from typing import Final

from dtd.address import Address, is_host
from dtd.errors import ConfigError

# Addresses for documentation: nothing is sent to them, the kernel only says how it would be.
_ELSEWHERE: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_DISCARD_PORT: Final = 9
# netdevice(7): ask for the address of the interface that the request names.
_SIOCGIFADDR: Final = 0x8915
_REQUEST: Final = struct.Struct("256s")
_ADDRESS_AT: Final = 20


def advertised(setting: str, listen: Address) -> tuple[Address, ...]:
    """The coordinator's addresses for others, most wanted first.

    Args:
        setting: HOST or HOST:PORT, several with commas between; empty: found out.
        listen: where it listens; its port counts where the setting names none.

    Raises:
        ConfigError: nothing is set, and this host has no address but loopback.
    """
    if setting:
        return tuple(_address(word.strip(), listen.port) for word in setting.split(","))
    if not listen.is_wildcard:
        return (listen,)
    return (Address(_primary_host(), listen.port),)


def _address(word: str, port: int) -> Address:
    return Address(word, port) if is_host(word) else Address.parse(word)


def _primary_host() -> str:
    """The address from which this host would call others."""
    for family, elsewhere in _ELSEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((elsewhere, _DISCARD_PORT))
            host = str(asking.getsockname()[0])
            if not ipaddress.ip_address(host).is_loopback:
                return host
    for host in _interface_hosts():
        if not ipaddress.ip_address(host).is_loopback:
            return host
    raise ConfigError(
        "this host has no address at which others could reach it",
        remedy="give one with --advertise HOST",
    )


def _interface_hosts() -> Iterator[str]:
    """The IPv4 addresses of this host's interfaces: a network of its own may have no way out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, _REQUEST.pack(name.encode()))
                yield socket.inet_ntoa(answer[_ADDRESS_AT : _ADDRESS_AT + 4])
