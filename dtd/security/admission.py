"""Issues certificates: to holders of a token, and to members that renew a credential.

A token's use is written down before the certificate is made, and that before it is handed out.
Used by `dtd.security.authority`.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dtd.address import Address
from dtd.errors import RequestRefused
from dtd.names import NAME_WORDS, is_name
from dtd.security import certificates, identity
from dtd.security.credential_book import REVOKED_REMEDY, IssuedRecord
from dtd.security.identity import check_names
from dtd.security.token import Token

if TYPE_CHECKING:
    from dtd.security.authority import Authority

MAX_RENEWED: Final = 8
"""Certificates of a credential that count at a time, and two more for each of its workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """The requested name and role, its workers, and the signing request (PEM)."""

    role: str
    name: str
    workers: tuple[str, ...] = ()
    request_pem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """A certificate (PEM) that renews another one; or why it is not time for it."""

    certificate_pem: bytes = b""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A new certificate (PEM), and the certificates that it replaces."""

    certificate_pem: bytes
    replaced: tuple[IssuedRecord, ...]


class Admission:
    """Issues certificates to requests from other hosts.

    Args:
        authority: issues them, and keeps the books of tokens and credentials.
    """

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def admit(self, request: Enrolment, token_id: str, secret: str) -> Admitted:
        """Issue a credential for a token, which counts as one use of it.

        The use is written down before the certificate is made, and that before it is handed out.

        Raises:
            RequestRefused: the token, the request, the role or a name is not acceptable.
        """
        _check(request)
        now_s = self._authority.now_s()
        key = certificates.requested_key(request.request_pem)
        sha256 = certificates.key_sha256(key)
        token = self._authority.tokens.check(
            token_id, secret, request.role, request.name, sha256, now_s=now_s
        )
        before = self._authority.credentials.check_free(
            request.role,
            request.name,
            request.workers,
            replaces=token.replaces,
            key=sha256,
            now_s=now_s,
        )
        again = self._asked_for_again(token_id, sha256, request)
        self._authority.tokens.use(token_id, request.name, sha256)
        gone = self._authority.credentials.take_back({one.id for one in before}, now_s=now_s)
        issued = self._authority.issue(key, request, token=token_id, credential=again)
        return Admitted(certificate_pem=issued, replaced=tuple(gone))

    def _asked_for_again(self, token_id: str, key: str, request: Enrolment) -> str:
        """The credential that a token has brought to this key before; empty when it has not.

        A repeated request gets one certificate more of that credential, so that what was taken
        back stays so.

        Raises:
            RequestRefused: it counts no more, or has enough certificates.
        """
        first = self._authority.credentials.made_for(token_id, request.name, key)
        if first is None:
            return ""
        living = self._living_of(first.id)
        if not living:
            raise RequestRefused(
                f"the credential that {request.name} received for the token {token_id} was "
                "revoked or has expired",
                remedy=REVOKED_REMEDY,
            )
        if len(living) >= _most_of(request.workers):
            raise RequestRefused(_enough(living), remedy="use the existing one")
        return first.id

    def _living_of(self, credential: str) -> list[IssuedRecord]:
        living = self._authority.credentials.living(now_s=self._authority.now_s())
        return [one for one in living if one.id == credential]

    def renew(self, who: identity.Identity, request_pem: str) -> Renewal:
        """A certificate that renews the one shown on the connection.

        Raises:
            RequestRefused: the request is not acceptable, or the shown certificate is not valid.
        """
        why, remedy = self._authority.standing(who)
        if not who.serial or why:
            raise RequestRefused(
                why or "the request shows no certificate that can be renewed", remedy=remedy
            )
        if not self._authority.is_due(who):
            from_s = self._authority.renewed_from_s(who.issued_s, who.expires_s)
            day = dt.datetime.fromtimestamp(from_s, dt.UTC)
            return Renewal(reason=f"it can be renewed from {day:%Y-%m-%d %H:%M} UTC on")
        before = self._living_of(who.credential)
        if len(before) >= _most_of(who.workers or ()):
            return Renewal(reason=_enough(before))
        key = certificates.requested_key(request_pem)
        request = Enrolment(role=who.role, name=who.name, workers=who.workers or ())
        issued = self._authority.issue(
            key,
            request,
            token="",
            credential=who.credential,
        )
        return Renewal(certificate_pem=issued)

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
            role: the role that it grants.
            life_s: how long it is good for; 0: until it is used up.
            coordinators: where the coordinator is.
            uses: how often it is good.
            names: those that can join with it, each once; empty: any.
            replaces: a living credential of the name gives way.

        Raises:
            RequestRefused: the role or a name is not acceptable, or too many tokens are valid.
        """
        if role not in identity.JOINABLE:
            roles = ", ".join(identity.JOINABLE)
            raise RequestRefused(
                f"joining is not possible as {role[:40]!r}", remedy=f"one of {roles}"
            )
        for name in names:
            _check(Enrolment(role=role, name=name))
        token = Token.make(
            role=role, coordinators=coordinators, authority_sha256=self._authority.sha256
        )
        record = self._authority.tokens.add(
            token,
            life_s=life_s,
            now_s=self._authority.now_s(),
            uses=max(uses, len(names)),
            names=names,
            replaces=replaces,
        )
        return token, record.expires_s


def _most_of(workers: tuple[str, ...]) -> int:
    """Return the most certificates of a credential for these workers that count at a time."""
    return MAX_RENEWED + 2 * len(workers)


def _enough(living: list[IssuedRecord]) -> str:
    return f"{len(living)} of its certificates are valid: some must expire first"


def _check(request: Enrolment) -> None:
    """Whether there can be such a member of the cluster.

    Raises:
        RequestRefused: there cannot.
    """
    role, name = request.role, request.name
    if role not in identity.JOINABLE or not is_name(name):
        raise RequestRefused(
            f"joining is not possible as {role[:20]}/{name[:80]}",
            remedy=f"choose with --name a name of {NAME_WORDS}",
        )
    if role == identity.WORKER:
        check_names(name, request.workers)
    elif request.workers:
        raise RequestRefused(f"a {role} cannot register workers")
