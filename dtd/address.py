"""HOST:PORT and unix:/PATH as users write them, checked before anything is opened.

Names are resolved later, when a connection is made.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Self

from dtd.errors import UsageError
from dtd.text.shown import shown

# A host name: labels of letters, digits, dashes and underscores, 253 characters at most.
_LABEL: Final = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*\.?")
_ONLY_NUMBERS: Final = re.compile(r"[0-9.]+")
_LAST_PORT: Final = 65535
ANY_IPV4: Final = "0.0.0.0"  # noqa: S104 - the name of it
ANY_IPV6: Final = "::"
"""All addresses of a host; the second one serves IPv4 as well."""
SCHEME: Final = "unix:"
"""Prefix of the address of a Unix-domain socket."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a listener; port 0 lets the kernel choose. IPv6 hosts carry no brackets here."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `HOST:PORT` or `[IPV6]:PORT`; raises `UsageError` that says what is wrong."""
        host, colon, port = text.rpartition(":")
        if not colon or not host:
            msg = f"must be HOST:PORT, not {shown(text)}"
            raise UsageError(msg)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            known = _is_ipv6(host)
        elif _is_ipv6(host) or _is_ipv6(text):
            msg = f"must have an IPv6 address in brackets, as in [::1]:7117, not {shown(text)}"
            raise UsageError(msg)
        else:
            known = is_host(host)
        if not known:
            msg = f"names no host that could exist: {shown(host)}"
            raise UsageError(msg)
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= _LAST_PORT):
            msg = f"must end in a port from 0 to {_LAST_PORT}, not {shown(port)}"
            raise UsageError(msg)
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it; names other than localhost do not count."""
        return self.host == "localhost" or is_loopback(self.host)

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for all addresses of a host."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SocketPath:
    """A Unix-domain socket of this host, by the absolute path of its file."""

    path: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `unix:/PATH`; raises `UsageError` that says what is wrong."""
        path = text.removeprefix(SCHEME)
        if not text.startswith(SCHEME) or not PurePosixPath(path).is_absolute():
            msg = f"must be {SCHEME} and an absolute path, not {shown(text)}"
            raise UsageError(msg)
        if not path.isprintable() or "," in path or path.endswith("/") or "/../" in path:
            msg = f"must name a file, without commas, .. and control characters, not {shown(text)}"
            raise UsageError(msg)
        return cls(path)

    def __str__(self) -> str:
        return f"{SCHEME}{self.path}"


Endpoint = Address | SocketPath


def parse_endpoint(text: str) -> Endpoint:
    """Read `HOST:PORT` or `unix:/PATH`; raises `UsageError` that says what is wrong."""
    if text.startswith(SCHEME):
        return SocketPath.parse(text)
    try:
        return Address.parse(text)
    except UsageError:
        if text.startswith("/"):
            msg = f"must be HOST:PORT or unix:/PATH, not {shown(text)}"
            raise UsageError(msg) from None
        raise


def is_loopback(host: str) -> bool:
    """Whether what is exchanged with this numeric address never leaves the machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_literal(text: str) -> bool:
    """Whether the text is an IPv4 or IPv6 address, and not a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_host(text: str) -> bool:
    """Whether the text is a host name, an IPv4 address or an IPv6 address without brackets."""
    if _ONLY_NUMBERS.fullmatch(text):
        try:
            ipaddress.IPv4Address(text)
        except ValueError:
            return False
        return True
    return _HOST_NAME.fullmatch(text) is not None or _is_ipv6(text)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
