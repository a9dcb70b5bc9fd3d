"""A renewed certificate: its place, and the conditions of its use.

It takes the place of the credential's file where that may be written.  Where not (a service manager
hands the file over read-only) it goes into the state directory, or into one that all workers of the
host share, and the next process takes the newest.  A job's code can write to both directories.
So a file there is only a key and a certificate: addresses of the coordinator, authority, role and
names come from the credential alone, whose authority must have signed the certificate.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dtd.errors import ConfigError
from dtd.security.credential import Credential, bare_client_context, certificates_in
from dtd.security.private_files import read_private

LEAF: Final = "renewed.credential"
SHARED: Final = "workers"
"""Directory next to the workers' own, for all workers of a host, made by systemd."""


def place_of_renewed(path: Path, state_dir: Path) -> Path:
    """The file that a renewal of the credential in `path` is written to."""
    if os.access(path.parent, os.W_OK):
        return path
    shared = state_dir.parent / SHARED
    return (shared if os.access(shared, os.W_OK) else state_dir) / LEAF


def places_of_renewed(state_dir: Path) -> tuple[Path, ...]:
    """Return the paths of renewed certificates that workers of this host could not put in place."""
    return state_dir / LEAF, state_dir.parent / SHARED / LEAF


def with_renewed(
    credential: Credential, places: Iterable[Path]
) -> tuple[Credential, tuple[ConfigError, ...]]:
    """The credential with the newest certificate that renews it.

    Args:
        credential: as in its file.
        places: files that may hold a renewed certificate.

    Returns:
        the credential, and for each newer file that does not renew it the reason.
    """
    newest, rejected = credential, []
    for place in places:
        if not place.is_file():
            continue
        try:
            found = _renewed(credential, place)
        except ConfigError as error:
            rejected.append(error)
            continue
        if found.issued > newest.issued:
            newest = found
    return newest, tuple(rejected)


def check_renews(credential: Credential, certificate_pem: str, source: str) -> bool:
    """Whether a certificate renews a credential: of the same authority, for the same holder.

    Args:
        credential: the credential.
        certificate_pem: the certificate.
        source: its source, as the message names it.

    Returns:
        whether it was issued later than the credential's; an older one may be of a credential that
        the host had before it joined again.

    Raises:
        ConfigError: it does not renew the credential.
    """
    from cryptography import x509

    from dtd.security import certificates

    try:
        found = x509.load_pem_x509_certificate(certificate_pem.encode())
        own = x509.load_pem_x509_certificate(credential.path.read_bytes())
        authorities = x509.load_pem_x509_certificates(credential.authority_pem.encode())
        same = set(certificates.uris_of(found)) == set(certificates.uris_of(own))
    except (ValueError, OSError) as error:
        raise ConfigError(f"{source} is damaged: {error}") from None
    if not certificates.is_signed_by(found, authorities):
        raise ConfigError(f"{source} is not signed by the authority of {credential.path}")
    is_newer = certificates.life_of(found)[0] > credential.issued.timestamp()
    if is_newer and not same:
        raise ConfigError(f"{source} is not for the holder of {credential.path}")
    return is_newer


def _renewed(credential: Credential, place: Path) -> Credential:
    """The credential with the certificate in a file, if that was issued later.

    Raises:
        ConfigError: the file does not renew it.
    """
    from dtd.security import certificates

    try:
        pem = certificates_in(read_private(place).decode("utf-8", "replace"))[0]
        if not check_renews(credential, pem, str(place)):
            return credential
        bare_client_context().load_cert_chain(place)
        facts = certificates.facts_of(pem.encode())
    except (ValueError, OSError, IndexError) as error:
        raise _ignored(place, f"{place} is damaged: {error}", credential) from None
    except ConfigError as error:
        raise _ignored(place, error.message, credential) from None
    return dataclasses.replace(
        credential,
        key_path=place,
        serial=facts.serial,
        issued=facts.issued,
        expires=facts.expires,
    )


def _ignored(place: Path, why: str, credential: Credential) -> ConfigError:
    return ConfigError(
        f"{why}; the certificate in {credential.path} is used",
        remedy=f"remove {place}; if the cluster was made anew, ask for a token and run `dtd-worker"
        " join TOKEN`",
    )
