"""Lets hosts and users join: shows the authority, and issues a credential for a token.

Handles GET_AUTHORITY and ENROL only, from callers without a certificate; the connection limiter
bounds their number and their time.  Requests are limited by a common rate and a rate for each
address, and are served after all work for authenticated members.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import structlog

from dtd.coordinator.audit import AuditLog
from dtd.coordinator.control_port import ControlPort
from dtd.coordinator.throttles import Contain, go_on
from dtd.errors import DtdError, ErrorCode, ProtocolError, RequestRefused
from dtd.net.limits import Pacing, origin_of
from dtd.net.link import Link
from dtd.security import admission
from dtd.security.admission import Admitted
from dtd.security.authority import Authority, Enrolment
from dtd.security.credential_book import IssuedRecord
from dtd.security.identity import WORKER, split_names, worker_names
from dtd.wire import messages as m

log = structlog.get_logger()

InStore = Callable[..., Awaitable[Any]]

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

MAX_QUESTIONS: Final = 4
"""Most questions on one connection; a join takes one."""


class JoinHandler:
    """Answers requests to join.

    Args:
        port: the control port, with the authority.
        in_store: runs a blocking function in the thread where all writing is done, after other work
            there.
        evict: ends the connections of replaced certificates, and evicts their workers.
        audit: records each member that joins.
        contain: where an error ends that keeps a caller from being answered.
    """

    def __init__(
        self,
        port: ControlPort,
        in_store: InStore,
        evict: Callable[[Iterable[IssuedRecord], str], object],
        audit: AuditLog,
        contain: Contain,
    ) -> None:
        self._port = port
        self._in_store = in_store
        self._evict = evict
        self._audit = audit
        self._contain = contain
        self._tasks: dict[Link, asyncio.Task[None]] = {}
        self._begun: set[Link] = set()
        self._left: set[asyncio.Task[None]] = set()
        self._questions: Counter[Link] = Counter()
        self._of_all = Pacing(rate_per_s=ANSWERS_PER_S, burst=ANSWERS_AT_ONCE)
        self._of_address = Pacing(rate_per_s=ENROLMENTS_PER_S, burst=ENROLMENTS_AT_ONCE)

    def ask(self, link: Link, message: m.GetAuthority | m.Enrol) -> None:
        """Answer when it is this caller's turn; one request at a time.

        Raises:
            ProtocolError: REFUSED, joining is not possible here, or not now.
        """
        authority = self._port.authority
        if authority is None:
            raise ProtocolError(
                ErrorCode.REFUSED,
                "this coordinator serves its own host only, where joining is not needed",
            )
        running = self._tasks.get(link)
        if running is not None and not running.done():
            raise ProtocolError(ErrorCode.REFUSED, "a request to join is unanswered")
        self._questions[link] += 1
        if self._questions[link] > MAX_QUESTIONS:
            raise ProtocolError(
                ErrorCode.REFUSED, f"more than {MAX_QUESTIONS} requests to join on one connection"
            )
        self._tasks[link] = asyncio.create_task(self._contained(link, authority, message))

    def forget(self, link: Link) -> None:
        """The connection is gone; an enrolment that has begun is done all the same.

        Otherwise a credential could be replaced while its connections remain.
        """
        self._questions.pop(link, None)
        task = self._tasks.pop(link, None)
        if task is not None and link not in self._begun:
            task.cancel()
        elif task is not None:
            self._left.add(task)
            task.add_done_callback(self._left.discard)

    async def _contained(
        self, link: Link, authority: Authority, message: m.GetAuthority | m.Enrol
    ) -> None:
        with self._contain(f"answering {m.message_name(type(message))}", link):
            await self._answer(link, authority, message)

    async def _answer(
        self, link: Link, authority: Authority, message: m.GetAuthority | m.Enrol
    ) -> None:
        if isinstance(message, m.Enrol):
            await go_on(self._of_address, origin_of(link.peer_host()))
        await go_on(self._of_all, "")
        if isinstance(message, m.GetAuthority):
            link.send(m.Authority(certificate_pem=authority.certificate_pem.decode()))
            return
        self._begun.add(link)
        try:
            await self._enrol(link, authority, message)
        finally:
            self._begun.discard(link)

    async def _enrol(self, link: Link, authority: Authority, request: m.Enrol) -> None:
        try:
            admitted = await self._audit.around(
                link, request, lambda: self._admit(authority, request), told=_told
            )
        except DtdError as error:
            why = f"joining: {error.message}"
            self._port.note_refusal(link.peer_host(), why, SHOWN_REMEDY, shown=SHOWN)
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
        coordinators = ",".join(map(str, self._port.coordinators))
        link.send(
            m.Enrolled(certificate_pem=admitted.certificate_pem.decode(), coordinators=coordinators)
        )

    async def _admit(self, authority: Authority, request: m.Enrol) -> Admitted:
        admitted: Admitted = await self._in_store(_admit, authority, request)
        if admitted.replaced:
            self._evict(admitted.replaced, "was replaced")
        return admitted


def _told(admitted: Admitted) -> dict[str, Any]:
    """The audit entry of a member that joined."""
    return {"replaced": [one.serial for one in admitted.replaced]}


def _admit(authority: Authority, request: m.Enrol) -> Admitted:
    """Blocking.

    Raises:
        RequestRefused: the token, the names or the request is not good.
    """
    if not request.token_id.isascii() or not request.token_secret.isascii():
        raise RequestRefused("the token is not known here, or was revoked")
    workers = split_names(request.workers)
    if request.role == WORKER and not workers:
        workers = worker_names(request.name)
    enrolment = Enrolment(
        role=request.role, name=request.name, workers=workers, request_pem=request.request_pem
    )
    return admission.admit(authority, enrolment, request.token_id, request.token_secret)
