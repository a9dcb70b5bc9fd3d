"""Credentials: hosts join with a token, certificates are renewed, operators manage both.

A token's secret is in the answer to CREATE_TOKEN and nowhere else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import structlog

from dtd.cluster.events import Revoked
from dtd.coordinator.containment import Refusals
from dtd.coordinator.core import Core
from dtd.coordinator.handlers.answers import acquire
from dtd.coordinator.services.audit import Caller
from dtd.coordinator.store.database import Turn
from dtd.errors import DtdError, ErrorCode, ProtocolError, RequestRefused
from dtd.net.limits import origin_of
from dtd.net.link import Link
from dtd.net.rates import Pacing
from dtd.security import admission
from dtd.security.admission import Admitted
from dtd.security.authority import Authority, Enrolment
from dtd.security.credential_book import IssuedRecord
from dtd.security.identity import WORKER, split_names, worker_names
from dtd.wire import messages as m

log = structlog.get_logger()

T = TypeVar("T")

# --- operators' requests about tokens and credentials --------------------------------------------


async def _urgently(core: Core, function: Callable[[], T]) -> T:
    return await core.store_thread.run(function, turn=Turn.URGENT)


def _authority(core: Core) -> Authority:
    if core.port.authority is None:
        raise RequestRefused(
            "this coordinator serves its own host only, where joining is not needed",
            remedy="to serve other hosts, start it with --listen 0.0.0.0:7117",
        )
    return core.port.authority


async def create_token(core: Core, _caller: Caller, request: m.CreateToken) -> dict[str, Any]:
    """Answer CREATE_TOKEN."""
    authority, names = _authority(core), split_names(request.names)
    create = functools.partial(
        authority.create_token,
        request.role,
        life_s=request.life_s,
        coordinators=core.port.coordinators,
        uses=request.uses,
        names=names,
        replaces=request.replaces,
    )
    token, expires_s = await _urgently(core, create)
    log.info("token_created", token_id=token.id, role=token.role, expires_s=expires_s)
    return {
        "id": token.id,
        "role": token.role,
        "expires_s": expires_s,
        "uses": max(request.uses, len(names)),
        "names": list(names),
        "token": token.word(),
    }


async def revoke_token(core: Core, _caller: Caller, request: m.RevokeToken) -> dict[str, Any]:
    """Answer REVOKE_TOKEN."""
    await _urgently(core, functools.partial(_authority(core).tokens.revoke, request.id))
    log.warning("token_revoked", token_id=request.id)
    return {"id": request.id}


async def list_tokens(core: Core, _caller: Caller, _request: m.ListTokens) -> dict[str, Any]:
    """Answer LIST_TOKENS."""
    authority = _authority(core)
    return {"tokens": authority.tokens.listed(now_s=authority.now_s())}


async def list_credentials(
    core: Core, _caller: Caller, _request: m.ListCredentials
) -> dict[str, Any]:
    """Answer LIST_CREDENTIALS."""
    authority = _authority(core)
    return {"credentials": authority.credentials.listed(now_s=authority.now_s())}


async def show_authority(core: Core, _caller: Caller, _request: m.ShowAuthority) -> dict[str, Any]:
    """Answer SHOW_AUTHORITY."""
    authority = _authority(core)
    expires = authority.certificate.not_valid_after_utc
    return {"sha256": authority.sha256, "expires_s": expires.timestamp()}


async def revoke(core: Core, _caller: Caller, request: m.RevokeCredential) -> dict[str, Any]:
    """Answer REVOKE_CREDENTIAL, and act even if the caller disconnects: it is recorded."""
    return await asyncio.shield(core.keep(_revoke(core, _authority(core), request.name)))


async def _revoke(core: Core, authority: Authority, name: str) -> dict[str, Any]:
    """Revoke, close its connections and evict its workers before anything else can happen."""
    revoked = await _urgently(
        core, lambda: authority.credentials.revoke(name, now_s=authority.now_s())
    )
    evicted = evict(core, revoked)
    return {
        "revoked": [{"serial": one.serial, "role": one.role, "name": one.name} for one in revoked],
        "evicted": evicted,
    }


def evict(core: Core, revoked: Iterable[IssuedRecord], how: str = "was revoked") -> list[str]:
    """Close all connections of these certificates; returns the workers that were evicted.

    All in one turn of the event loop, so that no worker whose credential was revoked is in the
    next generation.
    """
    evicted = []
    for one in revoked:
        why = f"the credential {one.role}/{one.name} ({one.serial}) {how}"
        log.warning("credential_revoked", role=one.role, name=one.name, serial=one.serial)
        workers = core.links.certified_by(one.serial) if one.role == WORKER else []
        for worker in workers:
            core.handle(Revoked(name=worker, reason=why))
        core.port.end([one.serial], why)
        evicted += workers
    return evicted


# --- joining -------------------------------------------------------------------------------------
#
# GET_AUTHORITY and ENROL come from callers without a certificate; the connection limiter bounds
# their number and their time.  These requests are limited by a common rate and a rate for each
# address, and are served after all work for authenticated members.


MAX_UNANSWERED: Final = 2
"""A caller without a certificate asks again when it has the answer, which may be noticed late."""

ANSWERS_PER_S: Final = 50.0
ANSWERS_AT_ONCE: Final = 128.0
"""Burst of answers to all unauthenticated callers together."""

ENROLMENTS_PER_S: Final = 5.0
ENROLMENTS_AT_ONCE: Final = 64.0
"""Burst of one address; many hosts may join at the same moment, and from behind one router."""

SHOWN: Final = "it asked to join, and was refused"
SHOWN_REMEDY: Final = (
    "it was told the reason, and so was the coordinator's log (`connection_refused`); a new token:"
    " `dtdctl token create`"
)
"""Texts of `dtdctl status`, which repeats no words of a stranger."""


class Joins:
    """Shows the authority, and issues a credential for a token."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._of_all = Pacing(rate_per_s=ANSWERS_PER_S, burst=ANSWERS_AT_ONCE)
        self._of_address = Pacing(rate_per_s=ENROLMENTS_PER_S, burst=ENROLMENTS_AT_ONCE)

    def ask(self, link: Link, message: m.GetAuthority | m.Enrol) -> None:
        """Answer when it is this caller's turn."""
        self._core.answers.begin(
            link, message, lambda: self._answer(link, message), most=MAX_UNANSWERED
        )

    async def _answer(self, link: Link, message: m.GetAuthority | m.Enrol) -> None:
        authority = _authority(self._core)
        if isinstance(message, m.Enrol):
            await acquire(self._of_address, origin_of(link.peer_host()))
        await acquire(self._of_all, "")
        if isinstance(message, m.GetAuthority):
            link.send(m.Authority(certificate_pem=authority.certificate_pem.decode()))
            return
        # What has begun is done even if the caller disconnects: otherwise a credential could be
        # replaced while its connections remain.
        await asyncio.shield(self._core.keep(self._enrol(link, authority, message)))

    async def _enrol(self, link: Link, authority: Authority, request: m.Enrol) -> None:
        port = self._core.port
        try:
            admitted = await self._core.audit.around(
                link, request, lambda: self._admit(authority, request), told=_told
            )
        except DtdError as error:
            why = f"joining: {error.message}"
            port.note_refusal(link.peer_host(), why, SHOWN_REMEDY, shown=SHOWN)
            link.fail(ProtocolError(ErrorCode.REFUSED, error.message, remedy=error.remedy))
            return
        except (OSError, sqlite3.Error) as error:
            log.error("store_failed", error=str(error))
            why = f"the coordinator's disk failed: {error}"
            link.fail(ProtocolError(ErrorCode.REFUSED, why, remedy="check its disk"))
            return
        log.info(
            "credential_issued",
            role=request.role,
            name=request.name,
            token_id=request.token_id,
            host=link.peer_host(),
        )
        coordinators = ",".join(map(str, port.coordinators))
        link.send(
            m.Enrolled(certificate_pem=admitted.certificate_pem.decode(), coordinators=coordinators)
        )

    async def _admit(self, authority: Authority, request: m.Enrol) -> Admitted:
        admitted = await self._core.store_thread.run(_admit, authority, request, turn=Turn.PATIENT)
        if admitted.replaced:
            evict(self._core, admitted.replaced, "was replaced")
        return admitted


def _told(admitted: Admitted) -> dict[str, Any]:
    """The audit entry of a member that joined."""
    return {"replaced": [one.serial for one in admitted.replaced]}


def _admit(authority: Authority, request: m.Enrol) -> Admitted:
    """Blocking."""
    if not request.token_id.isascii() or not request.token_secret.isascii():
        raise RequestRefused("the token is not known here, or was revoked")
    workers = split_names(request.workers)
    if request.role == WORKER and not workers:
        workers = worker_names(request.name)
    enrolment = Enrolment(
        role=request.role, name=request.name, workers=workers, request_pem=request.request_pem
    )
    return admission.admit(authority, enrolment, request.token_id, request.token_secret)


# --- renewal -------------------------------------------------------------------------------------
#
# A connection does not outlive its certificate.  Workers are told when it is time, by the clock of
# the coordinator; dtdctl asks by itself.  A connection over which the certificate was renewed
# continues, any other is closed and its holder told to join again.  The coordinator's own
# certificate and its operator's are renewed here, too.


LOOK_S: Final = 2.0
"""Most seconds that a connection may outlive its certificate."""
TOLD_EVERY_S: Final = 600.0
"""A worker that does not renew its certificate is told again."""
TIME_KEPT_EVERY_LOOKS: Final = 900


class Renewals:
    """Answers RENEW, and closes connections whose certificates have expired.

    Attributes:
        own_expires_s: Unix time at which the coordinator's own certificate ends; 0 without one.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.own_expires_s = 0.0
        self._told: dict[Link, float] = {}
        self._doubted = False
        self._failures = Refusals()

    def ask(self, link: Link, request: m.Renew) -> None:
        """Answer with RENEWED."""
        self._core.port.check(link, request)
        if request.taken:
            self._taken(link, request.taken)
        else:
            self._core.answers.begin(link, request, lambda: self._answer(link, request))

    def _taken(self, link: Link, serial: str) -> None:
        """The new certificate is on the holder's disk: the connection goes on with it."""
        authority, who = self._core.port.authority, link.identity
        record = authority.credentials.record(serial) if authority is not None else None
        if record is None or who is None or record.credential != who.credential:
            raise ProtocolError(ErrorCode.REFUSED, "that certificate does not renew this one")
        link.identity = dataclasses.replace(
            who, serial=serial, issued_s=record.issued_s, expires_s=record.expires_s
        )
        self._told.pop(link, None)

    async def keep(self) -> None:
        """Close expired connections, and renew this host's credentials, until cancelled."""
        for looks in itertools.count():
            authority = self._core.port.authority
            if authority is not None:
                self.look(authority)
                if not self.own_expires_s or authority.own_are_due():
                    await self._renew_own(authority)
                if looks % TIME_KEPT_EVERY_LOOKS == 0:
                    await self._keep_time(authority)
            await asyncio.sleep(LOOK_S)

    def is_due(self, link: Link) -> bool:
        """Whether it is time to renew the certificate with which a connection was opened."""
        authority, who = self._core.port.authority, link.identity
        if authority is None or who is None or not who.serial:
            return False
        return authority.is_due(who)

    def look(self, authority: Authority) -> None:
        """Close connections whose certificates have expired, and tell workers to renew."""
        now = asyncio.get_running_loop().time()
        workers = frozenset(self._core.links.all())
        self._told = {link: when for link, when in self._told.items() if not link.closing}
        for link in self._core.port.links():
            who = link.identity
            if who is None or not who.serial:
                continue
            why, remedy = authority.standing(who)
            if why:
                self._core.port.note_refusal(link.peer_host(), why, remedy)
                link.fail(ProtocolError(ErrorCode.REFUSED, why, remedy=remedy))
                continue
            waited_s = now - self._told.get(link, -TOLD_EVERY_S)
            if waited_s >= TOLD_EVERY_S and link in workers and authority.is_due(who):
                self._told[link] = now
                link.send(m.Renewed())

    async def _answer(self, link: Link, request: m.Renew) -> None:
        """Answer, and keep the connection even if there is no new certificate yet."""
        try:
            answer = await self._renew(link, request)
        except DtdError as error:
            answer = m.Renewed(reason=error.message)
        except OSError as error:
            log.error("store_failed", error=str(error))
            answer = m.Renewed(reason=f"the coordinator's disk failed: {error}")
        link.send(answer)

    async def _renew(self, link: Link, request: m.Renew) -> m.Renewed:
        port, who = self._core.port, link.identity
        if port.authority is None or who is None:
            raise RequestRefused("the request shows no certificate that can be renewed")
        renewed = await self._core.in_store(
            admission.renew, port.authority, who, request.request_pem
        )
        if renewed.certificate_pem:
            log.info("credential_renewed", role=who.role, name=who.name, host=link.peer_host())
        return dataclasses.replace(renewed, coordinators=",".join(map(str, port.coordinators)))

    async def _renew_own(self, authority: Authority) -> None:
        in_store, port = self._core.in_store, self._core.port
        try:
            await in_store(authority.equip, port.coordinators)
            if await in_store(authority.renew_server):
                await port.use_new_certificate()
            self.own_expires_s = await in_store(authority.server_expires_s)
        except (DtdError, OSError) as error:
            self._note_failure(error)

    async def _keep_time(self, authority: Authority) -> None:
        try:
            off_s = await self._core.in_store(authority.keep_time)
        except (DtdError, OSError) as error:
            self._note_failure(error)
            return
        if off_s and not self._doubted:
            log.warning("clock_doubted", off_s=round(off_s))
        self._doubted = bool(off_s)

    def _note_failure(self, error: DtdError | OSError) -> None:
        """The disk has failed: everything else continues, and the next check retries."""
        message = getattr(error, "message", str(error))
        if self._failures.note("", message, asyncio.get_running_loop().time()):
            log.error("own_credential_not_renewed", error=message)
