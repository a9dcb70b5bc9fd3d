"""The cluster's certificate authority: made once, lives in the coordinator's state directory.

    pki/ca.pem  ca.key  server.pem  data.key  clock.json
        tokens.json  issued.json  revoked.json  operator.credential  worker.token

Whoever reads `ca.key` can become anybody in the cluster, so the directory is its owner's alone.
Making, loading and issuing block for milliseconds; they happen at start and in the store's thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import hashlib
import secrets
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from dtd.address import Address
from dtd.errors import RequestRefused, UsageError
from dtd.names import NAME_WORDS, is_name
from dtd.security import certificates, identity, revocation_list
from dtd.security.authority_files import (
    CERTIFICATE_FILE,
    KEY_FILE,
    damaged,
    load_certificate,
)
from dtd.security.clock import FILE_NAME as CLOCK_FILE
from dtd.security.clock import Clock
from dtd.security.credential import server_context, write_credential
from dtd.security.credential_book import REVOKED_REMEDY, CredentialBook, IssuedRecord
from dtd.security.lifetimes import DAY_S, LIFE_DAYS, renewed_from_s
from dtd.security.newest_credential import head_of
from dtd.security.private_files import make_private_directory, read_private, write_private
from dtd.security.signers import RENEWS, SPREADS, Signer, Signers
from dtd.security.token import DEFAULT_LIFE_S, Token
from dtd.security.token_book import TOKENS_FILE, TokenBook
from dtd.security.worker_names import check_names, worker_names
from dtd.wire.data_keys import KEY_BYTES

DIRECTORY: Final = "pki"
SERVER_FILE: Final = "server.pem"
DATA_KEY_FILE: Final = "data.key"
OPERATOR_FILE: Final = "operator.credential"
FIRST_TOKEN_FILE: Final = "worker.token"  # noqa: S105 - a file's name
OPERATOR_NAME: Final = "operator"
COORDINATOR_NAME: Final = "coordinator"
SPREAD_S: Final = 3.0
"""So long the next authority is made known at least: a worker that was away calls again."""
LONG_S: Final = 3600.0
"""So long a worker that is connected and does not renew can hold that up."""
MAX_RENEWED: Final = 8
"""Certificates of a credential that count at a time, and two more for each of its workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """Who somebody wants to be, for which workers, and his signing request (PEM)."""

    role: str
    name: str
    workers: tuple[str, ...] = ()
    request_pem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Whether the replacement of the authority went on, and who is out by that."""

    changed: bool = False
    out: tuple[IssuedRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """A certificate (PEM) that renews another one; or why it is not time for it.

    `authority_pem`: the authorities that are trusted from now on.
    """

    certificate_pem: bytes = b""
    authority_pem: bytes = b""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A new certificate (PEM), and the certificates that count no more for its sake."""

    certificate_pem: bytes
    replaced: tuple[IssuedRecord, ...]


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
        self._life_days = life_days
        self._clock = Clock(directory / CLOCK_FILE)
        self._own_good_s: dict[str, tuple[float, float]] = {}
        self.signers = Signers(directory)
        self.cluster = self.signers.cluster
        self.tokens = TokenBook(directory / TOKENS_FILE)
        self.credentials = CredentialBook(directory)

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
        """Its certificate: whom tokens name."""
        return self.signers.current.pem

    @property
    def sha256(self) -> str:
        """What tokens know it by."""
        return self.signers.current.sha256

    def now_s(self) -> float:
        """Unix time, by a clock that does not jump."""
        return self._clock.now_s()

    def standing(self, who: identity.Identity) -> tuple[str, str]:
        """Why somebody's certificate does not count now, and what he can do; empty: it counts."""
        return self.credentials.standing(who, now_s=self.now_s())

    def is_due(self, who: identity.Identity) -> bool:
        """Whether it is time to renew somebody's certificate."""
        if self.now_s() >= self._renewed_from_s(who.issued_s, who.expires_s):
            return True
        return not self.keeps_up(self.credentials.record(who.serial))

    def keeps_up(self, record: IssuedRecord | None) -> bool:
        """Whether its holder knows the authorities of now, and has a certificate of the newest."""
        rotation = self.signers.rotation
        if record is None:
            return True
        renews = rotation is not None and rotation.phase == RENEWS
        own = not renews or record.signer == self.signers.newest.sha256
        return own and record.knows == self.signers.bundle_sha256

    def own_are_due(self) -> bool:
        """Whether it is time to renew the server's certificate, or the operator's credential."""
        now_s, good = self.now_s(), self._own_good_s.values()
        return not good or not all(begin_s <= now_s < end_s for begin_s, end_s in good)

    def _renewed_from_s(self, issued_s: float, expires_s: float) -> float:
        return renewed_from_s(issued_s, expires_s, life_days=self._life_days)

    def keep_time(self) -> float:
        """Write down what time it certainly is; returns by how much the host's clock is off."""
        self._clock.keep()
        return self._clock.doubt_s()

    # --- issuing -----------------------------------------------------------------------------

    def admit(self, request: Enrolment, token_id: str, secret: str) -> Admitted:
        """Give a credential to somebody who joins with a token, which is used up by it.

        The use is written down before the certificate is made, and that before it is handed out.

        Raises:
            RequestRefused: the token, the request, the role or a name is not acceptable.
        """
        _check(request)
        now_s = self.now_s()
        key = certificates.requested_key(request.request_pem)
        sha256 = certificates.key_sha256(key)
        token = self.tokens.check(token_id, secret, request.role, request.name, sha256, now_s=now_s)
        before = self.credentials.check_free(
            request.role,
            request.name,
            request.workers,
            replaces=token.replaces,
            key=sha256,
            now_s=now_s,
        )
        again = self._asked_for_again(token_id, sha256, request)
        self.tokens.use(token_id, request.name, sha256)
        gone = self.credentials.take_back({one.id for one in before}, now_s=now_s)
        knows = hashlib.sha256(self.certificate_pem).hexdigest()
        issued = self._issue(key, request, token=token_id, credential=again, knows=knows)
        return Admitted(certificate_pem=issued, replaced=tuple(gone))

    def _asked_for_again(self, token_id: str, key: str, request: Enrolment) -> str:
        """The credential that a token has brought to this key before; empty when it has not.

        Whoever asks once more gets one certificate more of that credential, so that what was taken
        back stays so.

        Raises:
            RequestRefused: it counts no more, or has enough certificates.
        """
        first = self.credentials.made_for(token_id, request.name, key)
        if first is None:
            return ""
        living = self._living_of(first.id)
        if not living:
            raise RequestRefused(
                f"what the token {token_id} has brought to {request.name} was revoked or has ended",
                remedy=REVOKED_REMEDY,
            )
        if len(living) >= _most_of(request.workers):
            raise RequestRefused(_enough(living), remedy="use the one that is there")
        return first.id

    def _living_of(self, credential: str) -> list[IssuedRecord]:
        living = self.credentials.living(now_s=self.now_s())
        return [one for one in living if one.id == credential]

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
        """Write a credential for somebody on this host, whose key is made here.

        Args:
            path: where it goes.
            role: what he may do.
            name: his own.
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
        issued = self._issue(
            key.public_key(),
            request,
            token="",
            credential=head_of(path).get("credential", "") if renews else "",
            knows=self.signers.bundle_sha256,
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
            authority_pem=self.signers.bundle_pem,
        )

    def renew(self, who: identity.Identity, request_pem: str) -> Renewal:
        """A certificate that renews the one with which somebody has called.

        Raises:
            RequestRefused: the request is not acceptable, or his certificate does not count.
        """
        why, remedy = self.standing(who)
        if not who.serial or why:
            raise RequestRefused(why or "nothing was shown that could be renewed", remedy=remedy)
        if not self.is_due(who):
            from_s = self._renewed_from_s(who.issued_s, who.expires_s)
            day = dt.datetime.fromtimestamp(from_s, dt.UTC)
            return Renewal(reason=f"it is renewed from {day:%Y-%m-%d %H:%M} UTC on")
        before = self._living_of(who.credential)
        if len(before) >= _most_of(who.workers or ()):
            return Renewal(reason=_enough(before))
        key = certificates.requested_key(request_pem)
        request = Enrolment(role=who.role, name=who.name, workers=who.workers or ())
        issued = self._issue(
            key,
            request,
            token="",
            credential=who.credential,
            knows=self.signers.bundle_sha256,
        )
        return Renewal(certificate_pem=issued, authority_pem=self.signers.bundle_pem)

    def _issue(
        self,
        key: ec.EllipticCurvePublicKey,
        request: Enrolment,
        *,
        token: str,
        credential: str = "",
        knows: str = "",
    ) -> bytes:
        """A certificate that is in the book.

        Args:
            key: its holder's.
            request: who he is.
            token: what he joined with, if he did.
            credential: what it renews.
            knows: the authorities that he gets to know with it.
        """
        certificate = self._signed(key, request, credential)
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
                signer=self.signers.of_members.sha256,
                knows=knows,
            )
        )
        return certificates.certificate_pem(certificate)

    def _signed(
        self, key: ec.EllipticCurvePublicKey, request: Enrolment, credential: str = ""
    ) -> x509.Certificate:
        serial = certificates.new_serial()
        uris = [identity.identity_uri(self.cluster, request.role, request.name)]
        uris += [identity.registers_uri(self.cluster, worker) for worker in request.workers]
        if request.role != identity.COORDINATOR:
            first = credential or identity.serial_text(serial)
            uris.append(identity.credential_uri(self.cluster, first))
        server = request.role == identity.COORDINATOR
        signer = self.signers.current if server else self.signers.of_members
        return certificates.member_certificate(
            signer.certificate,
            signer.key,
            key,
            uris=uris,
            role=request.role,
            serial=serial,
            now=dt.datetime.fromtimestamp(self.now_s(), dt.UTC),
            life_days=self._life_days,
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

        Args:
            role: what it lets somebody join as.
            life_s: how long it is good for; 0: until it is used up.
            coordinators: where the coordinator is.
            uses: how often it is good.
            names: who can join with it, each once; empty: whoever has it.
            replaces: a living credential of the name gives way.

        Raises:
            RequestRefused: nobody can join so, or too many tokens are valid.
        """
        if role not in identity.JOINABLE:
            roles = ", ".join(identity.JOINABLE)
            raise RequestRefused(f"nobody can join as {role[:40]!r}", remedy=f"one of {roles}")
        for name in names:
            _check(Enrolment(role=role, name=name))
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

    # --- what was revoked -------------------------------------------------------------------

    def revocations(self) -> bytes:
        """The list of what was revoked, signed, for workers to keep."""
        body = revocation_list.body_of(self.cluster, self.credentials.revoked())
        key = self.signers.current.key
        signature = key.sign(revocation_list.CONTEXT + body, ec.ECDSA(hashes.SHA256()))
        return revocation_list.joined(signature, body)

    def merge_revocations(self, document: bytes) -> list[IssuedRecord]:
        """Take back what a worker remembers to have been revoked.

        Returns:
            the certificates that counted until now.

        Raises:
            RequestRefused: the list is not this authority's.
        """
        try:
            signature, body = revocation_list.parted(document)
            _verify(self.signers.trusted, signature, revocation_list.CONTEXT + body)
            _cluster, records = revocation_list.read(body)
        except (ValueError, InvalidSignature) as error:
            why = str(error) or "its signature is not this authority's"
            raise RequestRefused(f"a list of revocations is not believed: {why}") from None
        return self.credentials.merge(records, now_s=self.now_s())

    # --- replacing the authority -------------------------------------------------------------

    def rotate(self, *, overlap_s: float) -> None:
        """Begin to replace the authority's key.

        Raises:
            RequestRefused: it is being replaced already.
            ConfigError: it cannot be written.
        """
        self.signers.begin(now_s=self.now_s(), overlap_s=overlap_s or self._life_days * DAY_S)
        self._own_good_s = {}

    def waiting(self) -> list[IssuedRecord]:
        """The newest certificate of each credential that does not keep up with the replacement."""
        newest = {one.id: one for one in self.credentials.living(now_s=self.now_s())}
        return [one for one in newest.values() if not self.keeps_up(one)]

    def go_on(self, connected: Iterable[identity.Identity], *, at_once: bool = False) -> Progress:
        """Take the next step of the replacement, if it is time.

        Args:
            connected: workers that are connected now.
            at_once: end it, whoever has not renewed.

        Raises:
            RequestRefused: `at_once`, and nothing is being replaced.
            ConfigError: it cannot be written.
        """
        rotation = self.signers.rotation
        if rotation is None and not at_once:
            return Progress()
        now_s, waiting = self.now_s(), self.waiting()
        if rotation is None or at_once or now_s >= rotation.ends_s:
            return self._end_rotation(waiting)
        behind = [who for who in connected if not self.keeps_up(self._record_of(who))]
        if rotation.phase == SPREADS:
            patience_s = LONG_S if behind else SPREAD_S
            if now_s < rotation.began_s + patience_s:
                return Progress()
            self.signers.let_renew()
            self._own_good_s = {}
            return Progress(changed=True)
        return Progress() if behind or waiting else self._end_rotation([])

    def _record_of(self, who: identity.Identity) -> IssuedRecord | None:
        return self.credentials.record(who.serial)

    def _end_rotation(self, waiting: list[IssuedRecord]) -> Progress:
        """Who has not renewed is out; tokens name the old authority, and are void."""
        self._own_good_s = {}  # first: whatever fails here, the coordinator shows what counts
        self.signers.end()
        gone = self.credentials.take_back({one.id for one in waiting}, now_s=self.now_s())
        self.tokens.clear()
        for leaf in (SERVER_FILE, FIRST_TOKEN_FILE):
            (self.directory / leaf).unlink(missing_ok=True)
        return Progress(changed=True, out=tuple(gone))

    # --- the coordinator's own ---------------------------------------------------------------

    def server_expires_s(self) -> float:
        """Unix time at which the coordinator's own certificate ends."""
        served = load_certificate(self.directory / SERVER_FILE)
        return served.not_valid_after_utc.timestamp()

    def server_context(self) -> ssl.SSLContext:
        """TLS for the control port: callers may show a certificate, and then it must be ours.

        A certificate that is there is not renewed here: any thread may ask, and whoever renews it
        has to tell the control port.

        Raises:
            ConfigError: the server's certificate cannot be read or written.
        """
        if not self._has_server():
            self.renew_server()
        context = server_context()
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.signers.bundle_pem.decode())
        try:
            context.load_cert_chain(self.directory / SERVER_FILE)
        except (OSError, ssl.SSLError) as error:
            raise damaged(self.directory, f"{SERVER_FILE}: {error}") from None
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
        made = self._signed(key.public_key(), own)
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
        clock was ahead, or is of an authority that was replaced.
        """
        served = load_certificate(path)
        begin_s = served.not_valid_before_utc.timestamp()
        from_s = self._renewed_from_s(*certificates.life_of(served))
        record = self.credentials.record(identity.serial_text(served.serial_number))
        if not self.keeps_up(record) or not _is_of(served, self.signers.trusted):
            from_s = begin_s
        self._own_good_s[path.name] = begin_s, from_s
        return not begin_s <= self.now_s() < from_s

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


def _most_of(workers: tuple[str, ...]) -> int:
    """How many certificates of a credential for these workers count at a time."""
    return MAX_RENEWED + 2 * len(workers)


def _enough(living: list[IssuedRecord]) -> str:
    return f"{len(living)} certificates of it count: some have to end first"


def _is_of(certificate: x509.Certificate, signers: Iterable[Signer]) -> bool:
    """Whether one of these has signed the certificate."""
    for signer in signers:
        with contextlib.suppress(ValueError, TypeError, InvalidSignature):
            certificate.verify_directly_issued_by(signer.certificate)
            return True
    return False


def _verify(signers: Iterable[Signer], signature: bytes, text: bytes) -> None:
    """Whether one of these has signed the text.

    Raises:
        InvalidSignature: none has.
    """
    for signer in signers:
        with contextlib.suppress(InvalidSignature):
            return signer.key.public_key().verify(signature, text, ec.ECDSA(hashes.SHA256()))
    raise InvalidSignature


def _check(request: Enrolment) -> None:
    """Whether there can be such a member of the cluster.

    Raises:
        RequestRefused: there cannot.
    """
    role, name = request.role, request.name
    if role not in identity.JOINABLE or not is_name(name):
        raise RequestRefused(
            f"nobody can join as {role[:20]}/{name[:80]}",
            remedy=f"choose with --name a name of {NAME_WORDS}",
        )
    if role == identity.WORKER:
        check_names(name, request.workers)
    elif request.workers:
        raise RequestRefused(f"a {role} registers no workers")


def _read_token(path: Path) -> Token:
    try:
        return Token.parse(read_private(path).decode())
    except (UsageError, UnicodeDecodeError) as error:
        raise damaged(path.parent, f"{path.name}: {error}") from None
