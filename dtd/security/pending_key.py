"""The key of a host that is joining, kept until its certificate is here.

A token is good once.  When the answer gets lost (power, network), whoever joins asks again with the
same key, and the coordinator knows that it is the same one.  The key lies beside the credential.
Blocking.
"""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dtd.errors import ConfigError
from dtd.security import certificates
from dtd.security.private_files import make_private_directory, read_private, write_private


def pending_key(credential: Path, token_id: str) -> ec.EllipticCurvePrivateKey:
    """The key with which this token has been shown before, or a new one.

    Raises:
        ConfigError: it cannot be written.
    """
    path = _place(credential)
    first_line = f"# joining with the token {token_id}\n".encode()
    if path.exists():
        try:
            content = read_private(path)
            key = load_pem_private_key(content, None)
        except (ConfigError, ValueError, TypeError):
            content, key = b"", None
        if content.startswith(first_line) and isinstance(key, ec.EllipticCurvePrivateKey):
            return key
    made = certificates.new_key()
    make_private_directory(path.parent)
    write_private(path, first_line + certificates.key_pem(made))
    return made


def forget_pending_key(credential: Path) -> None:
    """The certificate is here, or will never be."""
    _place(credential).unlink(missing_ok=True)


def _place(credential: Path) -> Path:
    return credential.with_name(f".{credential.name}.joining")
