"""Renews certificates over their connections, and closes connections of expired ones.

A connection does not outlive its certificate.  Workers are told when it is time, by the clock of
the coordinator; dtdctl asks by itself.  A connection over which the certificate was renewed
continues, any other is closed and its holder told to join again.  The coordinator's own certificate
and its operator's are renewed here, too.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import structlog

from dtd.coordinator.control_port import ControlPort
from dtd.coordinator.throttles import Contain, Refusals
from dtd.errors import DtdError, ErrorCode, ProtocolError, RequestRefused
from dtd.net.link import Link
from dtd.security import admission
from dtd.security.admission import Renewal
from dtd.security.authority import Authority
from dtd.wire import messages as m

log = structlog.get_logger()

LOOK_S: Final = 2.0
"""Most seconds that a connection may outlive its certificate."""
TOLD_EVERY_S: Final = 600.0
"""A worker that does not renew its certificate is told again."""
TIME_KEPT_EVERY_LOOKS: Final = 900


class RenewalHandler:
    """Answers RENEW, and closes connections whose certificates have expired.

    Args:
        port: the control port, with the authority.
        in_store: runs a blocking function in the thread where all writing is done.
        own_ends: told when the coordinator's own certificate ends, Unix seconds.
        workers: the connections of all registered workers.
        contain: where an error ends that keeps a RENEW from being answered.
    """

    def __init__(
        self,
        port: ControlPort,
        in_store: Callable[..., Awaitable[Any]],
        own_ends: Callable[[float], None],
        workers: Callable[[], Iterable[Link]],
        contain: Contain,
    ) -> None:
        self._port = port
        self._in_store = in_store
        self._own_ends = own_ends
        self._workers = workers
        self._told: dict[Link, float] = {}
        self._contain = contain
        self._answering: dict[Link, asyncio.Task[None]] = {}
        self._doubted = False
        self._failures = Refusals()

    def ask(self, link: Link, request: m.Renew) -> None:
        """Answer with RENEWED.

        Raises:
            ProtocolError: REFUSED, the one before is not answered yet, or nothing was renewed.
        """
        if request.taken:
            self._taken(link, request.taken)
            return
        if link in self._answering:
            raise ProtocolError(ErrorCode.REFUSED, "a RENEW is unanswered")
        self._answering[link] = asyncio.create_task(self._answer(link, request))

    def forget(self, link: Link) -> None:
        """The connection is gone."""
        task = self._answering.pop(link, None)
        if task is not None:
            task.cancel()

    def _taken(self, link: Link, serial: str) -> None:
        """The new certificate is on the holder's disk: the connection goes on with it."""
        authority, who = self._port.authority, link.identity
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
            authority = self._port.authority
            if authority is not None:
                self.look(authority)
                if authority.own_are_due():
                    await self._renew_own(authority)
                if looks % TIME_KEPT_EVERY_LOOKS == 0:
                    await self._keep_time(authority)
            await asyncio.sleep(LOOK_S)

    def is_due(self, link: Link) -> bool:
        """Whether it is time to renew the certificate with which a connection was opened."""
        authority, who = self._port.authority, link.identity
        if authority is None or who is None or not who.serial:
            return False
        return authority.is_due(who)

    def look(self, authority: Authority) -> None:
        """Close connections whose certificates have expired, and tell workers to renew."""
        now = asyncio.get_running_loop().time()
        workers = frozenset(self._workers())
        self._told = {link: when for link, when in self._told.items() if not link.closing}
        for link in self._port.links():
            who = link.identity
            if who is None or not who.serial:
                continue
            why, remedy = authority.standing(who)
            if why:
                self._port.note_refusal(link.peer_host(), why, remedy)
                link.fail(ProtocolError(ErrorCode.REFUSED, why, remedy=remedy))
                continue
            waited_s = now - self._told.get(link, -TOLD_EVERY_S)
            if waited_s >= TOLD_EVERY_S and link in workers and authority.is_due(who):
                self._told[link] = now
                link.send(m.Renewed())

    async def _answer(self, link: Link, request: m.Renew) -> None:
        """Answer, and keep the connection even if there is no new certificate yet."""
        with self._contain("answering a RENEW", link):
            try:
                answer = await self._renew(link, request)
            except DtdError as error:
                answer = m.Renewed(reason=error.message)
            except OSError as error:
                log.error("store_failed", error=str(error))
                answer = m.Renewed(reason=f"the coordinator's disk failed: {error}")
            self._answering.pop(link, None)
            link.send(answer)

    async def _renew(self, link: Link, request: m.Renew) -> m.Renewed:
        authority, who = self._port.authority, link.identity
        if authority is None or who is None:
            raise RequestRefused("the request shows no certificate that can be renewed")
        renewal: Renewal = await self._in_store(
            admission.renew, authority, who, request.request_pem
        )
        if renewal.certificate_pem:
            log.info("credential_renewed", role=who.role, name=who.name, host=link.peer_host())
        return m.Renewed(
            certificate_pem=renewal.certificate_pem.decode(),
            coordinators=",".join(map(str, self._port.coordinators)),
            reason=renewal.reason,
        )

    async def _renew_own(self, authority: Authority) -> None:
        try:
            await self._in_store(authority.equip, self._port.coordinators)
            if await self._in_store(authority.renew_server):
                await self._port.use_new_certificate()
                self._own_ends(authority.server_expires_s())
        except (DtdError, OSError) as error:
            self._note_failure(error)

    async def _keep_time(self, authority: Authority) -> None:
        try:
            off_s = await self._in_store(authority.keep_time)
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
