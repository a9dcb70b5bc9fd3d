"""Blocking TLS connections to members of the cluster, and the causes of failed handshakes in words.

OpenSSL says "sslv3 alert certificate expired" on one machine and "tlsv13 alert certificate
required" on the other; users need to know which credential is at fault and the remedy.
"""

from __future__ import annotations

import datetime as dt
import socket
import ssl
from typing import Final

from dtd.address import Address, Endpoint
from dtd.net.clients.blocking_link import Connect, connect_tcp
from dtd.security.credential import Credential, bare_client_context
from dtd.security.identity import check_role, of_certificate

LOOK_S: Final = 5.0


def tls_connect(
    context: ssl.SSLContext, peer_role: str, *, under: Connect = connect_tcp
) -> Connect:
    """Returns a function that opens TLS connections for a `BlockingLink`; an empty role is any.

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
    """
    now = dt.datetime.now(dt.UTC)
    if error is not None and is_of_time(error) and isinstance(address, Address):
        life = _life_there(address)
        return times(*life, now) if life is not None else clock(now)
    if credential is not None and (error is None or is_of_other_clock(error)):
        return times(credential.issued, credential.expires, now)
    return ""


def _life_there(address: Address) -> tuple[dt.datetime, dt.datetime] | None:
    """Validity of the certificate that is shown there; nothing else of it is used."""
    from cryptography import x509

    try:
        with tls_connect(bare_client_context(), "")(address, LOOK_S) as connected:
            assert isinstance(connected, ssl.SSLSocket)
            shown = x509.load_der_x509_certificate(connected.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError):
        return None
    return shown.not_valid_before_utc, shown.not_valid_after_utc


# Fragments of OpenSSL's reasons, as an error that this side raised or an alert that it was sent.
_CAUSES: Final = (
    ("certificate has expired", "its certificate has expired by this host's clock"),
    ("certificate_expired", "this side's credential has expired by the other host's clock"),
    ("alert certificate expired", "this side's credential has expired by the other host's clock"),
    ("unknown_ca", "this side's credential is from another cluster"),
    ("alert unknown ca", "this side's credential is from another cluster"),
    ("certificate_required", "it requires a credential, and this side has none"),
    ("alert certificate required", "it requires a credential, and this side has none"),
    ("certificate_revoked", "this side's credential is revoked"),
    ("unsupported_certificate", "this side's credential is not valid for clients"),
    ("unsuitable certificate purpose", "its certificate is not for this purpose"),
    ("certificate is not yet valid", "its certificate is not valid yet by this host's clock"),
    ("bad_certificate", "this side's credential is not accepted"),
    ("certificate verify failed", "its certificate is from another cluster"),
    ("wrong version number", "it does not speak TLS"),
    ("record layer failure", "it does not speak TLS"),
    ("http request", "it does not speak TLS"),
    ("unexpected eof", "it ended the connection in the middle of the TLS handshake"),
)


def tls_fault(error: BaseException) -> str:
    """The cause of a TLS error; says "its" of the other side."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"{error.verify_message} certificate verify failed"
    else:
        text = str(error)
    plain = text.lower()
    for fragment, sentence in _CAUSES:
        if fragment in plain:
            return sentence
    if isinstance(error, TimeoutError) or "timeout" in plain:
        return "the TLS handshake took too long"
    if isinstance(error, ConnectionError):
        return "it ended the connection in the middle of the TLS handshake"
    return f"TLS failed: {error}"


_OF_TIME: Final = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""
_ALERTS_OF_TIME: Final = (
    *("certificate_expired", "alert certificate expired"),
    *("bad_certificate", "alert bad certificate"),
)


def is_of_time(error: BaseException) -> bool:
    """Whether this host's clock shows a time at which the other side's certificate is not valid."""
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _OF_TIME


def is_of_other_clock(error: BaseException) -> bool:
    """Whether the other side may have rejected this side's certificate for the time it is there.

    OpenSSL calls one that is not valid yet a bad one.
    """
    text = str(error).lower()
    return isinstance(error, ssl.SSLError) and any(one in text for one in _ALERTS_OF_TIME)


def times(begin: dt.datetime, end: dt.datetime, now: dt.datetime) -> str:
    """The validity of a certificate, and what this host's clock shows."""
    return f"valid from {_shown(begin)} to {_shown(end)} UTC; {clock(now)}"


def clock(now: dt.datetime) -> str:
    """Return the time of this host's clock, in words."""
    return f"this host's clock shows {_shown(now)} UTC"


def _shown(time: dt.datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"
