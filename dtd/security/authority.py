"""The cluster's certificate authority: made once, lives in the coordinator's state directory.

    pki/ca.pem  ca.key  server.pem  server.key  data.key
        tokens.json  issued.json  revoked.json  operator.credential  worker.token

Whoever reads `ca.key` can become anybody in the cluster, so the directory is its owner's alone.
Making, loading and issuing block for milliseconds; they happen at start and in the store's thread.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import secrets
import ssl
import time
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from dtd.address import Address
from dtd.errors import RequestRefused, UsageError
from dtd.security import certificates, identity
from dtd.security.authority_files import (
    CERTIFICATE_FILE,
    KEY_FILE,
    cluster_of,
    damaged,
    load_certificate,
    load_key,
)
from dtd.security.credential import server_context, write_credential
from dtd.security.credential_book import CredentialBook, IssuedRecord
from dtd.security.data_keys import KEY_BYTES
from dtd.security.private_files import make_private_directory, read_private, write_private
from dtd.security.token import Token
from dtd.security.token_book import TokenBook

DIRECTORY: Final = "pki"
SERVER_FILE: Final = "server.pem"
SERVER_KEY_FILE: Final = "server.key"
DATA_KEY_FILE: Final = "data.key"
TOKENS_FILE: Final = "tokens.json"
OPERATOR_FILE: Final = "operator.credential"
FIRST_TOKEN_FILE: Final = "worker.token"  # noqa: S105 - a file's name
OPERATOR_NAME: Final = "operator"
COORDINATOR_NAME: Final = "coordinator"
SERVER_RENEWED_BEFORE: Final = dt.timedelta(days=certificates.LIFE_DAYS / 2)


class Authority:
    """A cluster's authority that is on disk.

    Args:
        directory: the `pki` directory; `Authority.create` makes one.

    Raises:
        ConfigError: something in it is missing, damaged, or readable by others.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key = load_key(directory / KEY_FILE)
        self._certificate = load_certificate(directory / CERTIFICATE_FILE)
        if self._certificate.public_key() != self._key.public_key():
            raise damaged(directory, f"{KEY_FILE} does not belong to {CERTIFICATE_FILE}")
        self.cluster = cluster_of(self._certificate, directory)
        self.tokens = TokenBook(directory / TOKENS_FILE)
        self.credentials = CredentialBook(directory)

    @classmethod
    def create(cls, directory: Path) -> Authority:
        """Make an authority.

        Raises:
            ConfigError: the directory cannot be written.
        """
        make_private_directory(directory)
        cluster, key = secrets.token_hex(16), certificates.new_key()
        certificate = certificates.authority_certificate(key, cluster, _now())
        write_private(directory / KEY_FILE, certificates.key_pem(key))
        write_private(directory / CERTIFICATE_FILE, certificates.certificate_pem(certificate))
        return cls(directory)

    @property
    def certificate_pem(self) -> bytes:
        """Its certificate."""
        return certificates.certificate_pem(self._certificate)

    @property
    def sha256(self) -> str:
        """What tokens know it by."""
        return certificates.sha256_hex(self._certificate)

    # --- issuing -----------------------------------------------------------------------------

    def issue(self, *, role: str, name: str, request_pem: str, token: str) -> bytes:
        """A certificate for somebody who asks with a token that has been checked.

        Args:
            role: his; never the coordinator's.
            name: his own.
            request_pem: a signing request; only its key is used.
            token: id of the token.

        Raises:
            RequestRefused: the request or the name is not acceptable.
        """
        if role not in identity.JOINABLE or not identity.NAME.fullmatch(name):
            raise RequestRefused(
                f"nobody can join as {role[:20]}/{name[:80]}",
                remedy="choose with --name a name of 1 to 64 letters, digits, dots, dashes or"
                " underscores, the first one a letter or digit",
            )
        return self._issue(certificates.requested_key(request_pem), role, name, token)

    def enrol(self, path: Path, role: str, name: str, *, coordinators: tuple[Address, ...]) -> None:
        """Write a credential for somebody on this host, whose key is made here.

        Raises:
            ConfigError: the file cannot be written.
        """
        key = certificates.new_key()
        issued = self._issue(key.public_key(), role, name, "")
        write_credential(
            path,
            role=role,
            name=name,
            coordinators=coordinators,
            key_pem=certificates.key_pem(key),
            certificate_pem=issued,
            expires=certificates.end_of(issued),
            authority_pem=self.certificate_pem,
        )

    def _issue(self, key: ec.EllipticCurvePublicKey, role: str, name: str, token: str) -> bytes:
        certificate = self._signed(key, role, name)
        self.credentials.add(
            IssuedRecord(
                serial=identity.serial_text(certificate.serial_number),
                role=role,
                name=name,
                issued_s=time.time(),
                expires_s=certificate.not_valid_after_utc.timestamp(),
                token=token,
            )
        )
        return certificates.certificate_pem(certificate)

    def _signed(self, key: ec.EllipticCurvePublicKey, role: str, name: str) -> x509.Certificate:
        return certificates.member_certificate(
            self._certificate,
            self._key,
            key,
            uri=identity.identity_uri(self.cluster, role, name),
            role=role,
            now=_now(),
        )

    def create_token(
        self, role: str, *, life_s: int, coordinators: tuple[Address, ...]
    ) -> tuple[Token, float]:
        """A new token and when it expires (Unix seconds, 0: never).

        Raises:
            RequestRefused: nobody can join in this role, or too many tokens are valid.
        """
        if role not in identity.JOINABLE:
            roles = ", ".join(identity.JOINABLE)
            raise RequestRefused(f"nobody can join as {role[:40]!r}", remedy=f"one of {roles}")
        token = Token.make(role=role, coordinators=coordinators, authority_sha256=self.sha256)
        record = self.tokens.add(token, life_s=life_s, now_s=time.time())
        return token, record.expires_s

    # --- the coordinator's own ---------------------------------------------------------------

    def server_expires_s(self) -> float:
        """Unix time at which the coordinator's own certificate ends."""
        served = load_certificate(self.directory / SERVER_FILE)
        return served.not_valid_after_utc.timestamp()

    def server_context(self) -> ssl.SSLContext:
        """TLS for the control port: callers may show a certificate, and then it must be ours.

        Raises:
            ConfigError: the server's certificate cannot be read or written.
        """
        self._renew_server()
        context = server_context()
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.certificate_pem.decode())
        try:
            context.load_cert_chain(self.directory / SERVER_FILE, self.directory / SERVER_KEY_FILE)
        except (OSError, ssl.SSLError) as error:
            raise damaged(self.directory, f"{SERVER_FILE}: {error}") from None
        return context

    def _renew_server(self) -> None:
        path = self.directory / SERVER_FILE
        if path.exists() and (self.directory / SERVER_KEY_FILE).exists():
            expires = load_certificate(path).not_valid_after_utc
            if expires - _now() > SERVER_RENEWED_BEFORE:
                return
        key = certificates.new_key()
        made = self._signed(key.public_key(), identity.COORDINATOR, COORDINATOR_NAME)
        write_private(self.directory / SERVER_KEY_FILE, certificates.key_pem(key))
        write_private(path, certificates.certificate_pem(made))

    def equip(self, coordinators: tuple[Address, ...]) -> bool:
        """See to it that this host's operator has a credential, and workers have a first token.

        Both state where the coordinator is, so they follow when that changes.

        Returns:
            whether the first token is new.

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
        token, _never = self.create_token(identity.WORKER, life_s=0, coordinators=coordinators)
        write_private(path, token.word().encode() + b"\n")
        return True

    def _equip_operator(self, coordinators: tuple[Address, ...]) -> None:
        path = self.directory / OPERATOR_FILE
        line = f"# coordinator: {','.join(map(str, coordinators))}"
        if path.exists():
            text = read_private(path).decode()
            lines = [line if one.startswith("# coordinator:") else one for one in text.split("\n")]
            if "\n".join(lines) != text:
                write_private(path, "\n".join(lines).encode())
            return
        self.enrol(path, identity.OPERATOR, OPERATOR_NAME, coordinators=coordinators)

    def first_token(self) -> Token | None:
        """The first worker token while it is valid."""
        path = self.directory / FIRST_TOKEN_FILE
        if not path.exists():
            return None
        token = _read_token(path)
        return token if self.tokens.is_valid(token.id, now_s=time.time()) else None


def open_authority(directory: Path) -> Authority:
    """The authority of this directory, made if there is none at all.

    Raises:
        ConfigError: it is damaged, or cannot be made.
    """
    files = [directory / leaf for leaf in (CERTIFICATE_FILE, KEY_FILE)]
    if not any(path.exists() for path in files):
        return Authority.create(directory)
    return Authority(directory)


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
        raise damaged(directory, f"{DATA_KEY_FILE} has {len(key)} bytes, not {KEY_BYTES}")
    return key


def _read_token(path: Path) -> Token:
    try:
        return Token.parse(read_private(path).decode())
    except (UsageError, UnicodeDecodeError) as error:
        raise damaged(path.parent, f"{path.name}: {error}") from None


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
