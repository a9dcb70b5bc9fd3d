"""A blocking TLS connection to a cluster member whose certificate must have a given role."""

from __future__ import annotations

import socket
import ssl

from dtd.address import Address
from dtd.net.blocking_link import Connect, connect_tcp
from dtd.security.identity import check_role, of_certificate


def tls_connect(
    context: ssl.SSLContext, peer_role: str, *, under: Connect = connect_tcp
) -> Connect:
    """Returns a function that opens TLS connections for a `BlockingLink`.

    Args:
        context: the context of a credential; or one that verifies nothing, with an empty role.
        peer_role: the role that the peer's certificate must have; empty: any.
        under: opens the TCP connection.

    Raises, when it is called:
        OSError: the TCP or the TLS connection cannot be opened.
        ProtocolError: the peer has another identity.
    """

    def connect(address: Address, timeout_s: float) -> socket.socket:
        plain = under(address, timeout_s)
        try:
            made = context.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise
        try:
            if peer_role:
                shown = of_certificate(made.getpeercert(), made.getpeercert(binary_form=True))
                check_role(shown, peer_role)
        except BaseException:
            made.close()
            raise
        return made

    return connect
