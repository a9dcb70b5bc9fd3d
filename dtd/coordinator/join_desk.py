"""Lets hosts and people join: shows the authority, and gives a credential for a token.

Only GET_AUTHORITY and ENROL come here, from callers who have shown no certificate yet; the
doorkeeper bounds their number and their time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from dtd.coordinator.control_port import ControlPort
from dtd.errors import DtdError, ErrorCode, ProtocolError, RequestRefused
from dtd.net.link import Link
from dtd.security.authority import Authority
from dtd.wire import messages as m

log = structlog.get_logger()

InStore = Callable[..., Awaitable[Any]]


class JoinDesk:
    """Answers those who want to join.

    Args:
        port: the control port, with the authority.
        in_store: runs a blocking function in the thread where all writing is done.
    """

    def __init__(self, port: ControlPort, in_store: InStore) -> None:
        self._port = port
        self._in_store = in_store
        self._tasks: dict[Link, asyncio.Task[None]] = {}

    def ask(self, link: Link, message: m.GetAuthority | m.Enrol) -> None:
        """Answer, and close the connection after ENROLLED; one request at a time.

        Raises:
            ProtocolError: REFUSED, nobody can join here, or not now.
        """
        authority = self._port.authority
        assert authority is not None, "a loopback port takes no connection of role join"
        if isinstance(message, m.GetAuthority):
            link.send(m.Authority(certificate_pem=authority.certificate_pem.decode()))
            return
        if link in self._tasks:
            raise ProtocolError(ErrorCode.REFUSED, "an ENROL is unanswered")
        self._tasks[link] = asyncio.create_task(self._enrol(link, authority, message))

    def forget(self, link: Link) -> None:
        """The connection is gone."""
        task = self._tasks.pop(link, None)
        if task is not None:
            task.cancel()

    async def _enrol(self, link: Link, authority: Authority, request: m.Enrol) -> None:
        try:
            issued = await self._in_store(_issue, authority, request)
        except DtdError as error:
            self._port.note_refusal(link.peer_host(), f"joining: {error.message}", error.remedy)
            link.fail(ProtocolError(ErrorCode.REFUSED, error.message, remedy=error.remedy))
            return
        log.info(
            "credential_issued",
            role=request.role,
            name=request.name,
            token_id=request.token_id,
            host=link.peer_host(),
        )
        coordinators = ",".join(map(str, self._port.coordinators))
        link.send(m.Enrolled(certificate_pem=issued.decode(), coordinators=coordinators))


def _issue(authority: Authority, request: m.Enrol) -> bytes:
    """Blocking.

    Raises:
        RequestRefused: the token, the name or the request is not good.
    """
    if not request.token_id.isascii() or not request.token_secret.isascii():
        raise RequestRefused("the token is not known here, or was revoked")
    authority.tokens.redeem(request.token_id, request.token_secret, request.role, now_s=time.time())
    return authority.issue(
        role=request.role,
        name=request.name,
        request_pem=request.request_pem,
        token=request.token_id,
    )
