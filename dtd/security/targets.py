"""Targets of a client's connection: over TLS with its credential, or the socket of its host.

On the socket the kernel identifies each side to the other.  Over TCP, also to this host itself,
both sides show credentials; no TCP connection is made without one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dtd.address import Endpoint, SocketPath
from dtd.errors import ConfigError
from dtd.host.places import find_sockets

if TYPE_CHECKING:  # a call on this host loads no TLS
    import ssl

    from dtd.security.credential import Credential


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a connection; `context` and `credential` are None for a socket of this host."""

    address: Endpoint
    context: ssl.SSLContext | None = None
    credential: Credential | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Reject a TCP address without TLS: every peer must authenticate."""
        if (self.context is None) != isinstance(self.address, SocketPath):
            raise ValueError(
                f"{self.address} needs a TLS context if it is a TCP address, and "
                "none if it is a socket"
            )

    def __str__(self) -> str:
        return str(self.address)


def targets(addresses: Sequence[Endpoint], credential: Credential | None) -> tuple[Target, ...]:
    """The coordinator's addresses, in the order in which they are tried; none: one of this host.

    Raises:
        ConfigError: a TCP address, and no credential.
    """
    known = credential.coordinators if credential is not None else ()
    context = credential.client_context() if credential is not None else None
    return tuple(_target(one, context, credential) for one in addresses or known)


def targets_here(environ: Mapping[str, str]) -> tuple[Target, ...]:
    """The coordinators of this host, for callers without an address."""
    return tuple(Target(one) for one in find_sockets(environ))


def _target(
    address: Endpoint, context: ssl.SSLContext | None, credential: Credential | None
) -> Target:
    if isinstance(address, SocketPath):
        return Target(address)
    if context is not None:
        return Target(address, context, credential)
    raise ConfigError(
        f"no credential for {address}",
        remedy="on the coordinator's own host, give no address, and its socket is used; elsewhere "
        "ask for a token (`dtdctl token create` there), then `dtd-worker join TOKEN` or "
        "`dtdctl join"
        " TOKEN` here",
    )


# --- where a credential is looked for when none is named -----------------------------------------
#
# Apart from what reads one: on a machine without a credential dtdctl loads no TLS.


STAND_IN: Final = b"# none"
"""The content that dtd-worker@.service hands over in place of a missing credential."""


def credential_places(
    leaf: str, environ: Mapping[str, str], *, system: tuple[Path, ...]
) -> tuple[Path, ...]:
    """Return the places to look for a credential when none is named, first to last."""
    places = []
    if environ.get("CREDENTIALS_DIRECTORY"):
        places.append(Path(environ["CREDENTIALS_DIRECTORY"]) / leaf)
    if environ.get("HOME"):
        base = environ.get("XDG_CONFIG_HOME") or str(Path(environ["HOME"]) / ".config")
        places.append(Path(base) / "dtd" / leaf)
    return (*places, *system)


def find_credential(places: tuple[Path, ...]) -> Path | None:
    """The first of the places with a file that this user can read.

    Where root has none, the unit of a worker hands over a stand-in, which does not count.
    """
    return next((place for place in places if _is_there(place)), None)


def _is_there(place: Path) -> bool:
    if not os.access(place, os.R_OK):
        return False
    with place.open("rb") as file:
        return file.read(2 * len(STAND_IN)).strip() != STAND_IN
