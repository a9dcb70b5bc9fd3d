"""Whom a client calls, and how: over TLS with its credential, or plainly on its own machine.

An address that the credential names is called with it, and so is every address when the credential
was named on purpose.  Any other loopback address is called plainly: the kernel tells the other side
who calls.  Nothing else is called at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtd.address import Address
from dtd.errors import ConfigError

if TYPE_CHECKING:  # a plain call of dtdctl loads no TLS
    import ssl

    from dtd.security.credential import Credential


@dataclass(frozen=True, slots=True)
class Target:
    """Where to call; `context` None: without TLS."""

    address: Address
    context: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return str(self.address)


def targets(
    addresses: Sequence[Address],
    credential: Credential | None,
    *,
    on_purpose: bool,
    default: Address,
) -> tuple[Target, ...]:
    """The coordinator's addresses, in the order in which they are tried.

    Args:
        addresses: as configured; empty: the credential's, without one the default.
        credential: what this side has.
        on_purpose: the credential was named by a flag, a variable or a setting.
        default: where a coordinator listens unless told otherwise.

    Raises:
        ConfigError: an address beyond loopback, and no credential for it.
    """
    known = credential.coordinators if credential is not None else ()
    context = credential.client_context() if credential is not None else None
    return tuple(
        _target(address, context, with_tls=on_purpose or address in known)
        for address in addresses or known or (default,)
    )


def _target(address: Address, context: ssl.SSLContext | None, *, with_tls: bool) -> Target:
    if context is not None and with_tls:
        return Target(address, context)
    if address.is_loopback:
        return Target(address)
    raise ConfigError(
        f"no credential for {address}",
        remedy="ask for a token: on the coordinator's host run `dtdctl token create`, then"
        " `dtd-worker join TOKEN` or `dtdctl join TOKEN` here",
    )
