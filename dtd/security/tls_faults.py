"""What a failed TLS handshake means, in a sentence, for either side.

OpenSSL says "sslv3 alert certificate expired" on one machine and "tlsv13 alert certificate
required" on the other; users need to know which credential is at fault and the remedy.
"""

from __future__ import annotations

import ssl
from typing import Final

# Fragments of OpenSSL's reasons, as an error that this side raised or an alert that it was sent.
_CAUSES: Final = (
    ("certificate has expired", "its certificate has expired"),
    ("certificate_expired", "this side's credential has expired"),
    ("alert certificate expired", "this side's credential has expired"),
    ("unknown_ca", "this side's credential is from another cluster"),
    ("alert unknown ca", "this side's credential is from another cluster"),
    ("certificate_required", "it requires a credential, and this side has none"),
    ("alert certificate required", "it requires a credential, and this side has none"),
    ("certificate_revoked", "this side's credential is revoked"),
    ("unsupported_certificate", "this side's credential is not valid for clients"),
    ("unsuitable certificate purpose", "its certificate is not for this purpose"),
    ("certificate is not yet valid", "its certificate is not valid yet: compare both clocks"),
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
