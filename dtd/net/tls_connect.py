"""A blocking TLS connection to a member of the cluster that must have a certain role."""

from __future__ import annotations

import socket
import ssl

from dtd.address import Address
from dtd.net.blocking_link import Connect, connect_tcp
from dtd.security.identity import check_role, of_certificate


def tls_connect(
    context: ssl.SSLContext, peer_role: str, *, under: Connect = connect_tcp
) -> Connect:
    """Makes TLS connections for a `BlockingLink`.

    Args:
        context: of a credential; or one that verifies nobody, with an empty role.
        peer_role: what the other side's certificate must say; empty: anything.
        under: makes the TCP connection.

    Raises, when it is called:
        OSError: the TCP or the TLS connection does not come about.
        ProtocolError: the other side is somebody else.
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
                check_role(of_certificate(made.getpeercert()), peer_role)
        except BaseException:
            made.close()
            raise
        return made

    return connect
