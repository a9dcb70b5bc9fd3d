"""The authority's key and certificate as they lie on disk: read, and refused when damaged.

Nothing that is damaged is ever made anew: hosts that have joined would be shut out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dtd.errors import ConfigError
from dtd.security.private_files import read_private

CERTIFICATE_FILE: Final = "ca.pem"
KEY_FILE: Final = "ca.key"


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The authority's private key.

    Raises:
        ConfigError: it is missing, damaged, or readable by others.
    """
    content = read_private(path)
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError):
        raise damaged(path.parent, f"{path.name} is no private key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise damaged(path.parent, f"{path.name} is no EC key")
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
        raise damaged(path.parent, f"{path.name} is no certificate") from None


def cluster_of(certificate: x509.Certificate, directory: Path) -> str:
    """The cluster whose authority it is.

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
        remedy="restore the directory from a backup; without one, move it away: a new authority is"
        " made, and every host joins anew",
    )
