"""The authority's key, and during a replacement the next one: which signs, and which are trusted.

    ca.pem  ca.key              the authority, whom tokens name
    next.pem  next.key          the one that takes its place
    rotation.json               how far that is

A replacement has two steps.  While it SPREADS everybody gets to know the next authority, and all is
signed as before.  Then members RENEW: the next authority signs their certificates, and the
coordinator still shows one of the old, for those who have not heard.  When everybody has renewed,
or the overlap is over, the old authority is forgotten.  A process that ends in the middle of that
is finished by the next.  Blocking.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dtd.errors import ConfigError, RequestRefused
from dtd.security import certificates
from dtd.security.private_files import read_private, read_records, write_private, write_records

NEXT_CERTIFICATE_FILE: Final = "next.pem"
NEXT_KEY_FILE: Final = "next.key"
ROTATION_FILE: Final = "rotation.json"
SPREADS: Final = "spreads"
RENEWS: Final = "renews"
ENDS: Final = "ends"


@dataclass(frozen=True, slots=True)
class Signer:
    """An authority's certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def sha256(self) -> str:
        """What it is known by."""
        return certificates.sha256_hex(self.certificate)

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return certificates.certificate_pem(self.certificate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """How far a replacement is; times are Unix seconds."""

    phase: str
    began_s: float
    ends_s: float


class Signers:
    """The authorities of a cluster: one, or two while the first is replaced.

    Args:
        directory: the `pki` directory.

    Attributes:
        current: whom tokens name, and who signs what the coordinator shows.
        next: who takes its place; None when it is not replaced.
        rotation: how far that is.

    Raises:
        ConfigError: a file is missing, damaged, or readable by others.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.rotation = _load_rotation(directory)
        self.next: Signer | None = None
        if self.rotation is not None and self.rotation.phase == ENDS:
            self._put_in_place()
        self.current = _load(directory, CERTIFICATE_FILE, KEY_FILE)
        self.cluster = cluster_of(self.current.certificate, directory)
        if self.rotation is not None:
            self.next = _load(directory, NEXT_CERTIFICATE_FILE, NEXT_KEY_FILE)

    @property
    def newest(self) -> Signer:
        """Whom everybody is to know."""
        return self.next or self.current

    @property
    def of_members(self) -> Signer:
        """Who signs the certificates of members."""
        renews = self.rotation is not None and self.rotation.phase == RENEWS
        return self.newest if renews else self.current

    @property
    def trusted(self) -> tuple[Signer, ...]:
        """Whose certificates count."""
        return (self.current,) if self.next is None else (self.current, self.next)

    @property
    def bundle_pem(self) -> bytes:
        """The certificates of all that are trusted."""
        return b"".join(one.pem for one in self.trusted)

    @property
    def bundle_sha256(self) -> str:
        """What they are known by together."""
        return hashlib.sha256(self.bundle_pem).hexdigest()

    def begin(self, *, now_s: float, overlap_s: float) -> None:
        """Make the next authority, which everybody gets to know from now on.

        Raises:
            RequestRefused: one is being replaced already.
            ConfigError: it cannot be written.
        """
        if self.rotation is not None:
            raise RequestRefused(
                "the authority is being replaced already", remedy="see `dtdctl authority show`"
            )
        key = certificates.new_key()
        now = dt.datetime.fromtimestamp(now_s, dt.UTC)
        made = certificates.authority_certificate(key, self.cluster, now)
        write_private(self._directory / NEXT_KEY_FILE, certificates.key_pem(key))
        pem = certificates.certificate_pem(made)
        write_private(self._directory / NEXT_CERTIFICATE_FILE, pem)
        self._note(Rotation(phase=SPREADS, began_s=now_s, ends_s=now_s + overlap_s))
        self.next = Signer(made, key)

    def let_renew(self) -> None:
        """Everybody knows the next authority: it signs from now on.

        Raises:
            ConfigError: it cannot be written.
        """
        self._note(self._under_way(RENEWS))

    def end(self) -> None:
        """Forget the old authority.

        Raises:
            RequestRefused: none is being replaced.
            ConfigError: it cannot be written.
        """
        self._note(self._under_way(ENDS))
        self._put_in_place()
        self.current = _load(self._directory, CERTIFICATE_FILE, KEY_FILE)
        self.next = None

    def _under_way(self, phase: str) -> Rotation:
        if self.rotation is None:
            raise not_under_way()
        began_s, ends_s = self.rotation.began_s, self.rotation.ends_s
        return Rotation(phase=phase, began_s=began_s, ends_s=ends_s)

    def _note(self, rotation: Rotation) -> None:
        record = {
            "phase": rotation.phase,
            "began_s": rotation.began_s,
            "ends_s": rotation.ends_s,
        }
        write_records(self._directory / ROTATION_FILE, [record])
        self.rotation = rotation

    def _put_in_place(self) -> None:
        """What was begun and not finished is done again from here on."""
        for old, new in ((KEY_FILE, NEXT_KEY_FILE), (CERTIFICATE_FILE, NEXT_CERTIFICATE_FILE)):
            if (self._directory / new).exists():
                write_private(self._directory / old, read_private(self._directory / new))
        for leaf in (NEXT_KEY_FILE, NEXT_CERTIFICATE_FILE, ROTATION_FILE):
            (self._directory / leaf).unlink(missing_ok=True)
        self.rotation = None


def not_under_way() -> RequestRefused:
    """The error for whoever ends what has not begun."""
    return RequestRefused(
        "the authority is not being replaced", remedy="start with `dtdctl authority rotate`"
    )


def _load(directory: Path, certificate_file: str, key_file: str) -> Signer:
    key = load_key(directory / key_file)
    certificate = load_certificate(directory / certificate_file)
    if certificate.public_key() != key.public_key():
        raise damaged(directory, f"{key_file} does not belong to {certificate_file}")
    return Signer(certificate, key)


def _load_rotation(directory: Path) -> Rotation | None:
    path = directory / ROTATION_FILE
    try:
        found = [Rotation(**record) for record in read_records(path)]
    except TypeError as error:
        raise ConfigError(f"{path} is damaged: {error}", remedy="restore it") from None
    return found[0] if found else None


# --- the authority's key and certificate as they lie on disk -------------------------------------
#
# Nothing that is damaged is ever made anew: hosts that have joined would be shut out.


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
        remedy="restore the directory from a backup; without one, move it away: a new authority "
        "is created, and every host must join again",
    )
