"""What a RENEW has brought becomes a credential: looked at, and written in one piece.  Blocking."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from dtd.errors import ConfigError
from dtd.security import certificates
from dtd.security.credential import Credential, parse_addresses, write_credential
from dtd.wire import messages as m

SKEW: Final = dt.timedelta(minutes=5)


def write_renewed(
    credential: Credential,
    key: ec.EllipticCurvePrivateKey,
    answer: m.Renewed,
    path: Path,
    *,
    now: dt.datetime,
) -> Credential:
    """Write a renewed credential.

    Args:
        credential: what is renewed.
        key: whose certificate it is.
        answer: the coordinator's.
        path: the file, which is replaced.
        now: the time.

    Raises:
        ConfigError: the certificate is not for the key or not for now, or cannot be written.
    """
    pem = answer.certificate_pem.encode()
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        facts = certificates.facts_of(pem)
    except ValueError:
        raise ConfigError("what came is no certificate") from None
    if certificate.public_key() != key.public_key():
        raise ConfigError("what came is not a certificate for the key of this host")
    if facts.expires <= now or facts.issued > now + SKEW:
        raise ConfigError(
            f"the new certificate counts from {facts.issued:%Y-%m-%d %H:%M} to"
            f" {facts.expires:%Y-%m-%d %H:%M} UTC, and here it is {now:%Y-%m-%d %H:%M}",
            remedy="compare `date -u` on both hosts",
        )
    write_credential(
        path,
        role=credential.role,
        name=credential.name,
        workers=credential.workers,
        coordinators=parse_addresses(answer.coordinators),
        key_pem=certificates.key_pem(key),
        certificate_pem=pem,
        facts=facts,
        authority_pem=answer.authority_pem.encode(),
    )
    return Credential.load(path)
