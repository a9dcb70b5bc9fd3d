"""Issues certificates: to holders of a token, and to members that renew a credential.

A token's use is written down before the certificate is made, and that before it is handed out.
Blocking; belongs in the store's thread.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from dtd.errors import RequestRefused
from dtd.security import certificates, identity
from dtd.security.authority import Authority, Enrolment
from dtd.security.credential_book import REVOKED_REMEDY, IssuedRecord
from dtd.wire import messages as m

MAX_RENEWED: Final = 8
"""Certificates of a credential that count at a time, and two more for each of its workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A new certificate (PEM), and the certificates that it replaces."""

    certificate_pem: bytes
    replaced: tuple[IssuedRecord, ...]


def admit(authority: Authority, request: Enrolment, token_id: str, secret: str) -> Admitted:
    """Issue a credential for a token, which counts as one use of it.

    The use is written down before the certificate is made, and that before it is handed out.

    Raises:
        RequestRefused: the token, the request, the role or a name is not acceptable.
    """
    request.check()
    now_s = authority.now_s()
    key = certificates.requested_key(request.request_pem)
    sha256 = certificates.key_sha256(key)
    token = authority.tokens.check(
        token_id, secret, request.role, request.name, sha256, now_s=now_s
    )
    before = authority.credentials.check_free(
        request.role,
        request.name,
        request.workers,
        replaces=token.replaces,
        key=sha256,
        now_s=now_s,
    )
    again = _asked_for_again(authority, token_id, sha256, request)
    authority.tokens.use(token_id, request.name, sha256)
    gone = authority.credentials.take_back({one.credential for one in before}, now_s=now_s)
    issued = authority.issue(key, request, token=token_id, credential=again)
    return Admitted(certificate_pem=issued, replaced=tuple(gone))


def _asked_for_again(authority: Authority, token_id: str, key: str, request: Enrolment) -> str:
    """The credential that a token has brought to this key before; empty when it has not.

    A repeated request gets one certificate more of that credential, so that what was taken
    back stays so.
    """
    first = authority.credentials.made_for(token_id, request.name, key)
    if first is None:
        return ""
    living = _living_of(authority, first.credential)
    if not living:
        raise RequestRefused(
            f"the credential that {request.name} received for the token {token_id} was "
            "revoked or has expired",
            remedy=REVOKED_REMEDY,
        )
    if len(living) >= _most_of(request.workers):
        raise RequestRefused(_enough(living), remedy="use the existing one")
    return first.credential


def _living_of(authority: Authority, credential: str) -> list[IssuedRecord]:
    living = authority.credentials.living(now_s=authority.now_s())
    return [one for one in living if one.credential == credential]


def renew(authority: Authority, who: identity.Identity, request_pem: str) -> m.Renewed:
    """A certificate that renews the one shown on the connection, or why it is not time for one.

    Raises:
        RequestRefused: the request is not acceptable, or the shown certificate is not valid.
    """
    why, remedy = authority.standing(who)
    if not who.serial or why:
        raise RequestRefused(
            why or "the request shows no certificate that can be renewed", remedy=remedy
        )
    if not authority.is_due(who):
        from_s = authority.renewed_from_s(who.issued_s, who.expires_s)
        day = dt.datetime.fromtimestamp(from_s, dt.UTC)
        return m.Renewed(reason=f"it can be renewed from {day:%Y-%m-%d %H:%M} UTC on")
    before = _living_of(authority, who.credential)
    if len(before) >= _most_of(who.workers or ()):
        return m.Renewed(reason=_enough(before))
    key = certificates.requested_key(request_pem)
    request = Enrolment(role=who.role, name=who.name, workers=who.workers or ())
    issued = authority.issue(
        key,
        request,
        token="",
        credential=who.credential,
    )
    return m.Renewed(certificate_pem=issued.decode())


def _most_of(workers: tuple[str, ...]) -> int:
    """Return the most certificates of a credential for these workers that count at a time."""
    return MAX_RENEWED + 2 * len(workers)


def _enough(living: list[IssuedRecord]) -> str:
    return f"{len(living)} of its certificates are valid: some must expire first"
