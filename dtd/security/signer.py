"""The authority's key and certificate, with which it signs.

    ca.pem  ca.key

Nothing that is damaged is ever made anew: hosts that have joined would be shut out.  Blocking.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dtd.errors import ConfigError
from dtd.security import certificates
from dtd.security.private_files import read_private

CERTIFICATE_FILE: Final = "ca.pem"
KEY_FILE: Final = "ca.key"


@dataclass(frozen=True, slots=True)
class Signer:
    """An authority's certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read both.

        Raises:
            ConfigError: a file is missing, damaged, or readable by others.
        """
        key = load_key(directory / KEY_FILE)
        certificate = load_certificate(directory / CERTIFICATE_FILE)
        if certificate.public_key() != key.public_key():
            raise damaged(directory, f"{KEY_FILE} does not belong to {CERTIFICATE_FILE}")
        return cls(certificate, key)

    @property
    def sha256(self) -> str:
        """The hash that identifies it."""
        return certificates.sha256_hex(self.certificate)

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return certificates.certificate_pem(self.certificate)


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The authority's private key.

    Raises:
        ConfigError: it is missing, damaged, or readable by others.
    """
    content = read_private(path)
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError):
        raise damaged(path.parent, f"{path.name} is not a private key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise damaged(path.parent, f"{path.name} is not an EC key")
    return key


def load_certificate(path: Path) -> x509.Certificate:
    """The authority's or the server's certificate.

    Raises:
        ConfigError: it is missing, damaged, or readable by others.
    """
    content = read_private(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise damaged(path.parent, f"{path.name} is not a certificate") from None


def cluster_of(certificate: x509.Certificate, directory: Path) -> str:
    """The cluster of an authority's certificate.

    Raises:
        ConfigError: it is no dtd cluster's.
    """
    names = [str(one.value) for one in certificate.subject]
    cluster = names[0].removeprefix("dtd cluster ") if len(names) == 1 else ""
    if not cluster or len(cluster) != 32:
        raise damaged(directory, f"{CERTIFICATE_FILE} is not a dtd cluster's")
    return cluster


def damaged(directory: Path, why: str) -> ConfigError:
    """The one error for an authority that cannot be used."""
    return ConfigError(
        f"the cluster's authority in {directory} is damaged: {why}",
        remedy="restore the directory from a backup; without one, move it away: a new authority "
        "is created, and every host must join again",
    )
