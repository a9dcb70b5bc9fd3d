"""A credential: its holder's identity, and the proof of it, in one file of mode 0600.

    # dtd credential 1
    # role: worker
    # name: host7
    # workers: host7,host7-cpu,host7-cuda0
    # coordinator: 10.0.0.1:7117,10.0.0.2:7117
    # credential: 5d3c9a...
    # serial: 5d3c9a...
    # issued: 2026-11-22T07:58:55+00:00
    # expires: 2026-12-22T07:58:55+00:00
    private key (PKCS8), its certificate, the authority's certificate, all PEM

The lines of the head are for people and for finding the coordinator; what counts is in the
certificate.  Nothing here keeps the private key in memory: TLS reads it from the file.

A renewed certificate takes the place of the credential's file where that may be written.  Where not
(a service manager hands the file over read-only) it goes into the state directory, or into one that
all workers of the host share, and the next process takes the newest.  A job's code can write to
both directories.  So a file there is only a key and a certificate: addresses of the coordinator,
authority, role and names come from the credential alone, whose authority must have signed the
certificate.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from dtd.address import Address
from dtd.errors import ConfigError, UsageError
from dtd.security import identity
from dtd.security.identity import Facts, split_names
from dtd.security.private_files import make_private_directory, read_private, write_private

FIRST_LINE: Final = "# dtd credential 1"
CERTIFICATES: Final = 2
"""Certificates in a file: its holder's, and the authority's."""
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_REMEDY: Final = "get a new one with `dtd-worker join TOKEN` or `dtdctl join TOKEN`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A credential on disk that has been read and found whole.

    Attributes:
        id: the id that it shares with those that renew it.
        key_path: the file with the private key and the certificate: `path`, or one in which a
            renewed certificate is kept (`dtd.security.credential`).
    """

    path: Path
    role: str
    name: str
    coordinators: tuple[Address, ...]
    expires: dt.datetime
    authority_pem: str
    workers: tuple[str, ...] = ()
    id: str
    serial: str
    issued: dt.datetime
    key_path: Path

    @classmethod
    def load(cls, path: Path, environ: Mapping[str, str] = os.environ) -> Self:
        """Read a credential.

        Raises:
            ConfigError: it cannot be read, others can read it, it is damaged, or its life is over.
        """
        made = cls.read(path, environ)
        made.check_life(dt.datetime.now(dt.UTC))
        return made

    @classmethod
    def read(cls, path: Path, environ: Mapping[str, str] = os.environ) -> Self:
        """Read a credential whose life may be over, as when a renewed certificate is elsewhere.

        Raises:
            ConfigError: it cannot be read, others can read it, or it is damaged.
        """
        managed = environ.get("CREDENTIALS_DIRECTORY")
        guarded = bool(managed) and path.parent == Path(str(managed))
        text = read_private(path, group_may_read=guarded).decode("utf-8", "replace")
        head = _head(text)
        certificates = certificates_in(text)
        if not text.startswith(FIRST_LINE + "\n") or len(certificates) != CERTIFICATES:
            raise ConfigError(f"{path} is not a dtd credential", remedy=_REMEDY)
        try:
            coordinators = parse_addresses(head.get("coordinator", ""))
            expires = dt.datetime.fromisoformat(head.get("expires", ""))
            issued = dt.datetime.fromisoformat(head.get("issued", ""))
            bare_client_context().load_cert_chain(path)
        except (UsageError, ValueError, OSError) as error:
            if read_private(path, group_may_read=guarded).decode("utf-8", "replace") != text:
                return cls.read(path, environ)  # renewed between certificate and key
            raise ConfigError(f"{path} is damaged: {error}", remedy=_REMEDY) from None
        role, name = head.get("role", ""), head.get("name", "")
        workers = split_names(head.get("workers", ""))
        return cls(
            path=path,
            role=role,
            name=name,
            workers=workers,
            coordinators=coordinators,
            expires=expires,
            authority_pem="".join(certificates[1:]),
            id=head.get("credential", ""),
            serial=head.get("serial", ""),
            issued=issued,
            key_path=path,
        )

    def client_context(self) -> ssl.SSLContext:
        """For connecting to a member of the cluster: TLS 1.3 with mutual authentication.

        The certificate's holder is not checked by host name but by role, once the connection
        stands.

        Raises:
            ConfigError: the file is gone or damaged.
        """
        context = bare_client_context()
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.authority_pem)
        self._prove_with(context)
        return context

    def server_context(self) -> ssl.SSLContext:
        """For accepting members of the cluster; no other peer completes the handshake.

        Raises:
            ConfigError: the file is gone or damaged.
        """
        context = server_context()
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.authority_pem)
        self._prove_with(context)
        return context

    def check_life(self, now: dt.datetime) -> None:
        """Whether the certificate has not expired by this host's clock.

        Raises:
            ConfigError: it has.
        """
        if self.expires <= now:
            raise ConfigError(
                f"the credential {self.key_path} has expired on {self.expires:%Y-%m-%d}",
                remedy=f"{_REMEDY}; if this host's clock is ahead, which shows"
                f" {now:%Y-%m-%d %H:%M} UTC, correct it and try again",
            )

    def days_left(self, now: dt.datetime) -> int:
        return (self.expires - now).days

    def _prove_with(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self.key_path)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{self.key_path} is damaged: {error}", remedy=_REMEDY) from None


def bare_client_context() -> ssl.SSLContext:
    """TLS 1.3 without checks yet: for asking an unknown authority for its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def server_context() -> ssl.SSLContext:
    """TLS 1.3 for a listening side, without a certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no resumption: every connection shows its certificate
    return context


def write_credential(
    path: Path,
    *,
    role: str,
    name: str,
    workers: tuple[str, ...] = (),
    coordinators: tuple[Address, ...],
    key_pem: bytes,
    certificate_pem: bytes,
    facts: Facts,
    authority_pem: bytes,
) -> None:
    """Write a credential file of mode 0600, making its directory if need be.

    Raises:
        ConfigError: it cannot be written.
    """
    head = [
        FIRST_LINE,
        f"# role: {role}",
        f"# name: {name}",
        *([f"# workers: {','.join(workers)}"] if workers else []),
        f"# coordinator: {','.join(map(str, coordinators))}",
        f"# credential: {facts.credential}",
        f"# serial: {facts.serial}",
        f"# issued: {facts.issued.isoformat()}",
        f"# expires: {facts.expires.isoformat()}",
    ]
    make_private_directory(path.parent)
    content = "\n".join(head).encode() + b"\n" + key_pem + certificate_pem + authority_pem
    write_private(path, content)


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Addresses separated by commas.

    Raises:
        UsageError: one of them is none.
    """
    return tuple(Address.parse(word.strip()) for word in text.split(","))


def _head(text: str) -> dict[str, str]:
    """`# key: value` lines before the first PEM block."""
    values = {}
    for line in text.partition("-----BEGIN")[0].splitlines():
        key, colon, value = line.removeprefix("#").partition(":")
        if colon:
            values[key.strip()] = value.strip()
    return values


def certificates_in(text: str) -> list[str]:
    """The certificates of a file of PEM blocks."""
    blocks = text.split(_BEGIN)[1:]
    return [_BEGIN + block.partition(_END)[0] + _END + "\n" for block in blocks if _END in block]


def check_role(credential: Credential, *allowed: str) -> None:
    """Whether the credential is of one of these roles.

    Raises:
        ConfigError: it is of another.
    """
    if credential.role not in allowed:
        raise ConfigError(
            f"the credential {credential.path} is a {credential.role}'s, not a"
            f" {' or '.join(allowed)}'s",
            remedy="ask for a token of the right role: `dtdctl token create --role"
            f" {identity.WORKER if identity.WORKER in allowed else identity.OPERATOR}`",
        )


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
    """The credential with the certificate in a file, if that was issued later."""
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
