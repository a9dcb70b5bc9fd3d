"""Whom a client calls, and how: over TLS with its credential, or on its own host's socket.

On the socket the kernel tells each side who the other one is.  Over TCP, also to this host itself,
both sides show credentials; nobody is called there without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtd.address import Endpoint, SocketPath
from dtd.errors import ConfigError
from dtd.places import find_sockets

if TYPE_CHECKING:  # a call on this host loads no TLS
    import ssl

    from dtd.security.credential import Credential


@dataclass(frozen=True, slots=True)
class Target:
    """Where to call; `context` is None for a socket of this host, and for nothing else."""

    address: Endpoint
    context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Nothing else is made, so nobody is obeyed who has not shown who they are."""
        if (self.context is None) != isinstance(self.address, SocketPath):
            raise ValueError(f"{self.address} is called over TLS, and a socket without")

    def __str__(self) -> str:
        return str(self.address)


def targets(addresses: Sequence[Endpoint], credential: Credential | None) -> tuple[Target, ...]:
    """The coordinator's addresses, in the order in which they are tried; none: one of this host.

    Args:
        addresses: as configured; empty: the credential's.
        credential: what this side has.

    Raises:
        ConfigError: a TCP address, and no credential.
    """
    known = credential.coordinators if credential is not None else ()
    context = credential.client_context() if credential is not None else None
    return tuple(_target(address, context) for address in addresses or known)


def targets_here(environ: Mapping[str, str]) -> tuple[Target, ...]:
    """The coordinators of this host, for those who were told of none."""
    return tuple(Target(one) for one in find_sockets(environ))


def _target(address: Endpoint, context: ssl.SSLContext | None) -> Target:
    if isinstance(address, SocketPath):
        return Target(address)
    if context is not None:
        return Target(address, context)
    raise ConfigError(
        f"no credential for {address}",
        remedy="on the coordinator's own host name no address: its socket is found; elsewhere ask"
        " for a token (`dtdctl token create` there), then `dtd-worker join TOKEN` or `dtdctl join"
        " TOKEN` here",
    )
