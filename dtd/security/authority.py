"""The cluster's certificate authority: created once, stored in the coordinator's state directory.

    pki/ca.pem  ca.key  server.pem  data.key  clock.json
        tokens.json  issued.json  revoked.json  operator.credential  worker.token

A process that can read `ca.key` can impersonate any member of the cluster, so only the owner has
access to the directory. Making, loading and issuing block for milliseconds; they happen at start
and in the store's thread. Certificates are issued here; the decisions are
made in its parts: `admission` for other hosts, `own_certificate` for this one.
"""

from __future__ import annotations

import datetime as dt
import secrets
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from dtd.address import Address
from dtd.security import certificates, identity
from dtd.security.admission import Admission, Enrolment
from dtd.security.clock import FILE_NAME as CLOCK_FILE
from dtd.security.clock import Clock
from dtd.security.credential import certificates_in, write_credential
from dtd.security.credential_book import CredentialBook, IssuedRecord
from dtd.security.identity import worker_names
from dtd.security.lifetimes import LIFE_DAYS, renewed_from_s
from dtd.security.own_certificate import OwnCertificates
from dtd.security.private_files import make_private_directory, read_private, write_private
from dtd.security.signer import CERTIFICATE_FILE, KEY_FILE, Signer, cluster_of, damaged
from dtd.security.token_book import TOKENS_FILE, TokenBook
from dtd.wire.data_keys import KEY_BYTES

DIRECTORY: Final = "pki"
DATA_KEY_FILE: Final = "data.key"


class Authority:
    """A cluster's authority that is on disk.

    Args:
        directory: the `pki` directory; `Authority.create` makes one.
        life_days: how long the certificates that it issues live.

    Raises:
        ConfigError: something in it is missing, damaged, or readable by others.
    """

    def __init__(self, directory: Path, *, life_days: float = LIFE_DAYS) -> None:
        self.directory = directory
        self.life_days = life_days
        self._clock = Clock(directory / CLOCK_FILE)
        self.signer = Signer.load(directory)
        self.cluster = cluster_of(self.signer.certificate, directory)
        self.tokens = TokenBook(directory / TOKENS_FILE)
        self.credentials = CredentialBook(directory)
        self.admission = Admission(self)
        self.own = OwnCertificates(self)

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
        return self.signer.pem

    @property
    def sha256(self) -> str:
        """The hash by which tokens identify it."""
        return self.signer.sha256

    def now_s(self) -> float:
        """Unix time, by a clock that does not jump."""
        return self._clock.now_s()

    def standing(self, who: identity.Identity) -> tuple[str, str]:
        """Why a certificate is not accepted now, and the remedy; empty: it is accepted."""
        return self.credentials.standing(who, now_s=self.now_s())

    def is_due(self, who: identity.Identity) -> bool:
        """Whether a certificate is due for renewal."""
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

        Args:
            path: where to store the credential.
            role: the holder's role.
            name: the holder's name.
            coordinators: where the coordinator is.
            workers: the names that it registers; None: the usual ones of a host.
            renews: it renews the one that is there.

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
            authority_pem=self.signer.pem,
        )

    def issue(
        self,
        key: ec.EllipticCurvePublicKey,
        request: Enrolment,
        *,
        token: str,
        credential: str = "",
    ) -> bytes:
        """A certificate that is in the book.

        Args:
            key: its holder's.
            request: the holder's name, role and key.
            token: the token with which the holder joined, if any.
            credential: the one that it renews.
        """
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
        serial = certificates.new_serial()
        uris = [identity.identity_uri(self.cluster, request.role, request.name)]
        uris += [identity.registers_uri(self.cluster, worker) for worker in request.workers]
        if request.role != identity.COORDINATOR:
            first = credential or identity.serial_text(serial)
            uris.append(identity.credential_uri(self.cluster, first))
        return certificates.member_certificate(
            self.signer.certificate,
            self.signer.key,
            key,
            uris=uris,
            role=request.role,
            serial=serial,
            now=dt.datetime.fromtimestamp(self.now_s(), dt.UTC),
            life_days=self.life_days,
        )


def open_authority(directory: Path, *, life_days: float = LIFE_DAYS) -> Authority:
    """The authority of this directory, made if there is none at all.

    Args:
        directory: the `pki` directory.
        life_days: how long the certificates that it issues live.

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
        raise damaged(directory, f"{DATA_KEY_FILE} has {len(key)} bytes, not {KEY_BYTES}")
    return key
