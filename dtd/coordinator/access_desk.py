"""What operators ask about tokens and credentials (protocol.md, "dtdctl and coordinator").

A token's secret stands in the answer to CREATE_TOKEN and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from dtd.coordinator.control_port import ControlPort
from dtd.core.membership_events import Event, Revoked
from dtd.errors import RequestRefused
from dtd.security.authority import Authority
from dtd.security.credential_book import IssuedRecord
from dtd.security.identity import WORKER
from dtd.wire import messages as m

log = structlog.get_logger()

ACCESS_REQUESTS: Final = (
    m.CreateToken,
    m.ListTokens,
    m.RevokeToken,
    m.ListCredentials,
    m.RevokeCredential,
)
AccessRequest = (
    m.CreateToken | m.ListTokens | m.RevokeToken | m.ListCredentials | m.RevokeCredential
)


class AccessDesk:
    """Answers requests about who may join and who has joined.

    Args:
        port: the control port, with the authority.
        in_store: runs a blocking function in the thread where all writing is done.
        handle: hands an event to the core.
        workers_of: the registered workers that a certificate speaks for.
    """

    def __init__(
        self,
        port: ControlPort,
        *,
        in_store: Callable[..., Awaitable[Any]],
        handle: Callable[[Event], None],
        workers_of: Callable[[str], list[str]],
    ) -> None:
        self._port = port
        self._in_store = in_store
        self._handle = handle
        self._workers_of = workers_of

    async def answer(self, request: AccessRequest) -> dict[str, Any]:
        """Do what is asked.

        Raises:
            RequestRefused: it cannot be done; on loopback nothing of this can.
        """
        authority = self._port.authority
        if authority is None:
            raise RequestRefused(
                "this coordinator listens on loopback only, where nobody needs to join",
                remedy="to serve other hosts, start it with --listen 0.0.0.0:7117",
            )
        if isinstance(request, m.CreateToken):
            return await self._create_token(authority, request)
        if isinstance(request, m.RevokeToken):
            await self._in_store(authority.tokens.revoke, request.id)
            log.warning("token_revoked", token_id=request.id)
            return {"id": request.id}
        if isinstance(request, m.ListTokens):
            return {"tokens": authority.tokens.listed(now_s=time.time())}
        if isinstance(request, m.ListCredentials):
            return {"credentials": authority.credentials.listed()}
        return await self._revoke(authority, request.name)

    async def _create_token(self, authority: Authority, request: m.CreateToken) -> dict[str, Any]:
        token, expires_s = await self._in_store(
            lambda: authority.create_token(
                request.role, life_s=request.life_s, coordinators=self._port.coordinators
            )
        )
        log.info("token_created", token_id=token.id, role=token.role, expires_s=expires_s)
        return {
            "id": token.id,
            "role": token.role,
            "expires_s": expires_s,
            "token": token.word(),
        }

    async def _revoke(self, authority: Authority, name: str) -> dict[str, Any]:
        """Its connections end and its workers are evicted before anything else can happen."""
        revoked: list[IssuedRecord] = await self._in_store(
            lambda: authority.credentials.revoke(name, now_s=time.time())
        )
        evicted = []
        for one in revoked:
            why = f"the credential {one.role}/{one.name} ({one.serial}) was revoked"
            log.warning("credential_revoked", role=one.role, name=one.name, serial=one.serial)
            workers = self._workers_of(one.serial) if one.role == WORKER else []
            for worker in workers:
                self._handle(Revoked(name=worker, reason=why))
            self._port.end([one.serial], why)
            evicted += workers
        return {
            "revoked": [
                {"serial": one.serial, "role": one.role, "name": one.name} for one in revoked
            ],
            "evicted": evicted,
        }
