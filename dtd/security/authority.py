"""The cluster's certificate authority: created once, stored in the coordinator's state directory.

    pki/ca.pem  ca.key  server.pem  data.key  clock.json
        tokens.json  issued.json  revoked.json  operator.credential  worker.token

A process that can read `ca.key` can impersonate any member of the cluster, so only the owner has
access to the directory.  Nothing that is damaged is made anew: hosts that have joined would be shut
out.  All of it blocks for milliseconds, at start and in the store's thread.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dtd.address import Address
from dtd.errors import ConfigError, RequestRefused, UsageError
from dtd.security import certificates, identity
from dtd.security.certificate_life import LIFE_DAYS, renewed_from_s
from dtd.security.clock import FILE_NAME as CLOCK_FILE
from dtd.security.clock import Clock
from dtd.security.credential import certificates_in, server_context, write_credential
from dtd.security.credential_book import CredentialBook, IssuedRecord
from dtd.security.identity import check_names, worker_names
from dtd.security.private_files import make_private_directory, read_private, write_private
from dtd.security.token import DEFAULT_LIFE_S, TOKENS_FILE, Token, TokenBook
from dtd.text.names import NAME_WORDS, is_name
from dtd.wire.data_keys import KEY_BYTES

DIRECTORY: Final = "pki"
CERTIFICATE_FILE: Final = "ca.pem"
KEY_FILE: Final = "ca.key"
DATA_KEY_FILE: Final = "data.key"
SERVER_FILE: Final = "server.pem"
OPERATOR_FILE: Final = "operator.credential"
FIRST_TOKEN_FILE: Final = "worker.token"  # noqa: S105 - a file's name
OPERATOR_NAME: Final = "operator"
COORDINATOR_NAME: Final = "coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """The requested name and role, its workers, and the signing request (PEM)."""

    role: str
    name: str
    workers: tuple[str, ...] = ()
    request_pem: str = ""

    def check(self) -> None:
        """Whether there can be such a member of the cluster.

        Raises:
            RequestRefused: there cannot.
        """
        role, name = self.role, self.name
        if role not in identity.JOINABLE or not is_name(name):
            raise RequestRefused(
                f"joining is not possible as {role[:20]}/{name[:80]}",
                remedy=f"choose with --name a name of {NAME_WORDS}",
            )
        if role == identity.WORKER:
            check_names(name, self.workers)
        elif self.workers:
            raise RequestRefused(f"a {role} cannot register workers")


class Authority:
    """A cluster's authority that is on disk.

    Raises:
        ConfigError: something in it is missing, damaged, or readable by others.
    """

    def __init__(self, directory: Path, *, life_days: float = LIFE_DAYS) -> None:
        self.directory = directory
        self.life_days = life_days
        self._clock = Clock(directory / CLOCK_FILE)
        self.key = _load_key(directory / KEY_FILE)
        self.certificate = _load_certificate(directory / CERTIFICATE_FILE)
        if self.certificate.public_key() != self.key.public_key():
            raise _damaged(directory, f"{KEY_FILE} does not belong to {CERTIFICATE_FILE}")
        self.cluster = _cluster_of(self.certificate, directory)
        self.tokens = TokenBook(directory / TOKENS_FILE)
        self.credentials = CredentialBook(directory)
        self._own_good_s: dict[str, tuple[float, float]] = {}

    @classmethod
    def create(cls, directory: Path, *, life_days: float = LIFE_DAYS) -> Authority:
        """Make an authority.

        Raises:
            ConfigError: the directory cannot be written.
        """
        make_private_directory(directory)
        cluster, key = secrets.token_hex(16), certificates.new_key()
        certificate = certificates.authority_certificate(key, cluster, dt.datetime.now(dt.UTC))
        write_private(directory / KEY_FILE, certificates.key_pem(key))
        write_private(directory / CERTIFICATE_FILE, certificates.certificate_pem(certificate))
        return cls(directory, life_days=life_days)

    @property
    def certificate_pem(self) -> bytes:
        """The certificate that tokens name."""
        return certificates.certificate_pem(self.certificate)

    @property
    def sha256(self) -> str:
        """The hash by which tokens identify it."""
        return certificates.sha256_hex(self.certificate)

    def now_s(self) -> float:
        """Unix time, by a clock that does not jump."""
        return self._clock.now_s()

    def standing(self, who: identity.Identity) -> tuple[str, str]:
        """Why a certificate is not accepted now, and the remedy; empty: it is accepted."""
        return self.credentials.standing(who, now_s=self.now_s())

    def is_due(self, who: identity.Identity) -> bool:
        return self.now_s() >= self.renewed_from_s(who.issued_s, who.expires_s)

    def renewed_from_s(self, issued_s: float, expires_s: float) -> float:
        """Unix time from which a certificate of this life is renewed."""
        return renewed_from_s(issued_s, expires_s, life_days=self.life_days)

    def keep_time(self) -> float:
        """Write down what time it certainly is; returns by how much the host's clock is off."""
        self._clock.keep()
        return self._clock.doubt_s()

    # --- issuing -----------------------------------------------------------------------------

    def enrol(
        self,
        path: Path,
        role: str,
        name: str,
        *,
        coordinators: tuple[Address, ...],
        workers: tuple[str, ...] | None = None,
        renews: bool = False,
    ) -> None:
        """Write a credential for a member on this host, with a key that is made here.

        With `renews` it keeps the id of the one that is there.

        Raises:
            ConfigError: the file cannot be written.
        """
        key = certificates.new_key()
        if workers is None:
            workers = worker_names(name) if role == identity.WORKER else ()
        request = Enrolment(role=role, name=name, workers=workers)
        former = certificates_in(read_private(path).decode())[0].encode() if renews else b""
        issued = self.issue(
            key.public_key(),
            request,
            token="",
            credential=certificates.facts_of(former).credential if former else "",
        )
        write_credential(
            path,
            role=role,
            name=name,
            workers=workers,
            coordinators=coordinators,
            key_pem=certificates.key_pem(key),
            certificate_pem=issued,
            facts=certificates.facts_of(issued),
            authority_pem=self.certificate_pem,
        )

    def issue(
        self,
        key: ec.EllipticCurvePublicKey,
        request: Enrolment,
        *,
        token: str,
        credential: str = "",
    ) -> bytes:
        """A certificate that is in the book."""
        certificate = self.signed(key, request, credential)
        serial = identity.serial_text(certificate.serial_number)
        self.credentials.add(
            IssuedRecord(
                serial=serial,
                role=request.role,
                name=request.name,
                issued_s=self.now_s(),
                expires_s=certificate.not_valid_after_utc.timestamp(),
                token=token,
                workers=request.workers,
                credential=credential or serial,
                key=certificates.key_sha256(key),
                fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
            )
        )
        return certificates.certificate_pem(certificate)

    def signed(
        self, key: ec.EllipticCurvePublicKey, request: Enrolment, credential: str = ""
    ) -> x509.Certificate:
        """A certificate that is in no book, as the coordinator's own is; arguments as `issue`."""
        serial = x509.random_serial_number()
        uris = [identity.identity_uri(self.cluster, request.role, request.name)]
        uris += [identity.registers_uri(self.cluster, worker) for worker in request.workers]
        if request.role != identity.COORDINATOR:
            first = credential or identity.serial_text(serial)
            uris.append(identity.credential_uri(self.cluster, first))
        return certificates.member_certificate(
            self.certificate,
            self.key,
            key,
            uris=uris,
            role=request.role,
            serial=serial,
            now=dt.datetime.fromtimestamp(self.now_s(), dt.UTC),
            life_days=self.life_days,
        )

    def create_token(
        self,
        role: str,
        *,
        life_s: int,
        coordinators: tuple[Address, ...],
        uses: int = 1,
        names: tuple[str, ...] = (),
        replaces: bool = False,
    ) -> tuple[Token, float]:
        """A new token and when it expires (Unix seconds, 0: never).

        With `names` each of these can join once; with `replaces` a living credential gives way.

        Raises:
            RequestRefused: the role or a name is not acceptable, or too many tokens are valid.
        """
        if role not in identity.JOINABLE:
            roles = ", ".join(identity.JOINABLE)
            raise RequestRefused(
                f"joining is not possible as {role[:40]!r}", remedy=f"one of {roles}"
            )
        for name in names:
            Enrolment(role=role, name=name).check()
        token = Token.make(role=role, coordinators=coordinators, authority_sha256=self.sha256)
        record = self.tokens.add(
            token,
            life_s=life_s,
            now_s=self.now_s(),
            uses=max(uses, len(names)),
            names=names,
            replaces=replaces,
        )
        return token, record.expires_s

    # --- files for the coordinator's own host ------------------------------------------------

    def own_are_due(self) -> bool:
        """Whether it is time to renew the server's certificate, or the operator's credential."""
        now_s, good = self.now_s(), self._own_good_s.values()
        return not good or not all(begin_s <= now_s < end_s for begin_s, end_s in good)

    def server_expires_s(self) -> float:
        """Unix time at which the coordinator's own certificate ends."""
        served = _load_certificate(self.directory / SERVER_FILE)
        return served.not_valid_after_utc.timestamp()

    def server_sha256(self) -> str:
        """Fingerprint of the coordinator's own certificate, as browsers show it."""
        served = _load_certificate(self.directory / SERVER_FILE)
        return served.fingerprint(hashes.SHA256()).hex()

    def server_context(self) -> ssl.SSLContext:
        """TLS for the control port: callers may show a certificate, and then it must be ours.

        A certificate that is there is not renewed here: any thread may ask, and a renewal has to
        reach the control port.

        Raises:
            ConfigError: the server's certificate cannot be read or written.
        """
        if not self._has_server():
            self.renew_server()
        context = server_context()
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.certificate_pem.decode())
        try:
            context.load_cert_chain(self.directory / SERVER_FILE)
        except (OSError, ssl.SSLError) as error:
            raise _damaged(self.directory, f"{SERVER_FILE}: {error}") from None
        return context

    def renew_server(self) -> bool:
        """Make the coordinator's own certificate if it is time; returns whether it was.

        Key and certificate are one file, so that they fit one another whatever happens.

        Raises:
            ConfigError: it cannot be read or written.
        """
        path = self.directory / SERVER_FILE
        if self._has_server() and not self._own_is_due(path):
            return False
        key = certificates.new_key()
        own = Enrolment(role=identity.COORDINATOR, name=COORDINATOR_NAME)
        made = self.signed(key.public_key(), own)
        write_private(path, certificates.key_pem(key) + certificates.certificate_pem(made))
        self._own_is_due(path)
        return True

    def _has_server(self) -> bool:
        """Whether there is a certificate of the coordinator's, with its key."""
        path = self.directory / SERVER_FILE
        return path.exists() and b"PRIVATE KEY" in read_private(path)

    def _own_is_due(self, path: Path) -> bool:
        """Whether to make anew what is in this file; remembers while it need not.

        It is also when members could not accept it: it counts from a later time on, since the
        clock was ahead, or was issued by an authority that is no longer here.
        """
        served = _load_certificate(path)
        begin_s = served.not_valid_before_utc.timestamp()
        from_s = self.renewed_from_s(*certificates.life_of(served))
        if not certificates.is_signed_by(served, [self.certificate]):
            from_s = begin_s
        self._own_good_s[path.name] = begin_s, from_s
        return not begin_s <= self.now_s() < from_s

    def equip(self, coordinators: tuple[Address, ...]) -> bool:
        """Make a credential for this host's operator, and a first token for workers, if missing.

        Both state where the coordinator is, so they follow when that changes.

        Raises:
            ConfigError: a file cannot be written.
        """
        self._equip_operator(coordinators)
        path = self.directory / FIRST_TOKEN_FILE
        if path.exists():
            token = dataclasses.replace(_read_token(path), coordinators=coordinators)
            if token != _read_token(path):
                write_private(path, token.word().encode() + b"\n")
            return False
        token, _expires_s = self.create_token(
            identity.WORKER, life_s=DEFAULT_LIFE_S, coordinators=coordinators
        )
        write_private(path, token.word().encode() + b"\n")
        return True

    def _equip_operator(self, coordinators: tuple[Address, ...]) -> None:
        """The operator's credential of this host is made anew when it is time."""
        path = self.directory / OPERATOR_FILE
        line = f"# coordinator: {','.join(map(str, coordinators))}"
        if path.exists():
            text = read_private(path).decode()
            lines = [line if one.startswith("# coordinator:") else one for one in text.split("\n")]
            if "\n".join(lines) != text:
                write_private(path, "\n".join(lines).encode())
            if not self._own_is_due(path):
                return
        self.enrol(
            path, identity.OPERATOR, OPERATOR_NAME, coordinators=coordinators, renews=path.exists()
        )
        self._own_is_due(path)

    def first_token(self) -> Token | None:
        """The first worker token while it is valid."""
        path = self.directory / FIRST_TOKEN_FILE
        if not path.exists():
            return None
        token = _read_token(path)
        return token if self.tokens.is_valid(token.id, now_s=self.now_s()) else None


def open_authority(directory: Path, *, life_days: float = LIFE_DAYS) -> Authority:
    """The authority of this directory, made if there is none at all.

    Raises:
        ConfigError: it is damaged, or cannot be made.
    """
    files = [directory / leaf for leaf in (CERTIFICATE_FILE, KEY_FILE)]
    if not any(path.exists() for path in files):
        return Authority.create(directory, life_days=life_days)
    return Authority(directory, life_days=life_days)


def open_data_key(directory: Path) -> bytes:
    """The root of all secrets of the data plane, made if it is not there: 32 bytes.

    Raises:
        ConfigError: it is damaged, or cannot be made.
    """
    path = directory / DATA_KEY_FILE
    if not path.exists():
        make_private_directory(directory)
        write_private(path, secrets.token_bytes(KEY_BYTES))
    key = read_private(path)
    if len(key) != KEY_BYTES:
        raise _damaged(directory, f"{DATA_KEY_FILE} has {len(key)} bytes, not {KEY_BYTES}")
    return key


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The authority's private key."""
    content = read_private(path)
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError):
        raise _damaged(path.parent, f"{path.name} is not a private key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _damaged(path.parent, f"{path.name} is not an EC key")
    return key


def _load_certificate(path: Path) -> x509.Certificate:
    """The authority's or the server's certificate."""
    content = read_private(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise _damaged(path.parent, f"{path.name} is not a certificate") from None


def _cluster_of(certificate: x509.Certificate, directory: Path) -> str:
    """The cluster of an authority's certificate."""
    names = [str(one.value) for one in certificate.subject]
    cluster = names[0].removeprefix("dtd cluster ") if len(names) == 1 else ""
    if not cluster or len(cluster) != 32:
        raise _damaged(directory, f"{CERTIFICATE_FILE} is not a dtd cluster's")
    return cluster


def _damaged(directory: Path, why: str) -> ConfigError:
    """The one error for an authority that cannot be used."""
    return ConfigError(
        f"the cluster's authority in {directory} is damaged: {why}",
        remedy="restore the directory from a backup; without one, move it away: a new authority "
        "is created, and every host must join again",
    )


def _read_token(path: Path) -> Token:
    try:
        return Token.parse(read_private(path).decode())
    except (UsageError, UnicodeDecodeError) as error:
        raise _damaged(path.parent, f"{path.name}: {error}") from None
