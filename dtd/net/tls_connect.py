"""A blocking TLS connection to a cluster member whose certificate must have a given role."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
from typing import Final

from dtd.address import Address, Endpoint
from dtd.net.blocking_link import Connect, connect_tcp
from dtd.security.credential import Credential, bare_client_context
from dtd.security.identity import check_role, of_certificate
from dtd.security.tls_faults import clock, is_of_other_clock, is_of_time, times

LOOK_S: Final = 5.0


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


def times_of(error: BaseException | None, address: Endpoint, credential: Credential | None) -> str:
    """The times that a TLS connection may have failed of; empty when it failed of something else.

    Of a certificate that is not valid by this host's clock OpenSSL does not say when it is, so the
    other side is asked for it once more.  Blocking.

    Args:
        error: the end of the connection, if known.
        address: the other side's.
        credential: this side's, which the other one may have rejected.
    """
    now = dt.datetime.now(dt.UTC)
    if error is not None and is_of_time(error) and isinstance(address, Address):
        life = _life_there(address)
        return times(*life, now) if life is not None else clock(now)
    if credential is not None and (error is None or is_of_other_clock(error)):
        return times(credential.issued, credential.expires, now)
    return ""


def _life_there(address: Address) -> tuple[dt.datetime, dt.datetime] | None:
    """Validity of the certificate that is shown there, which nothing else is believed of."""
    from cryptography import x509

    try:
        with tls_connect(bare_client_context(), "")(address, LOOK_S) as connected:
            assert isinstance(connected, ssl.SSLSocket)
            shown = x509.load_der_x509_certificate(connected.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError):
        return None
    return shown.not_valid_before_utc, shown.not_valid_after_utc
