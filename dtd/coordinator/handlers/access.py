"""Requests of operators about tokens and credentials (protocol.md, "dtdctl and coordinator").

A token's secret is in the answer to CREATE_TOKEN and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog

from dtd.cluster.events import Event, Revoked
from dtd.coordinator.control_port import ControlPort
from dtd.errors import RequestRefused
from dtd.security.authority import Authority
from dtd.security.credential_book import IssuedRecord
from dtd.security.identity import WORKER, split_names
from dtd.wire import messages as m

log = structlog.get_logger()

AccessRequest = (
    m.CreateToken
    | m.ListTokens
    | m.RevokeToken
    | m.ListCredentials
    | m.RevokeCredential
    | m.ShowAuthority
)


class AccessHandler:
    """Answers requests about tokens and credentials.

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
        self._tasks: set[asyncio.Task[dict[str, Any]]] = set()

    async def answer(self, request: AccessRequest) -> dict[str, Any]:
        """Perform a request.

        Raises:
            RequestRefused: it cannot be done; without a TCP address nothing of this can.
        """
        authority = self._port.authority
        if authority is None:
            raise RequestRefused(
                "this coordinator serves its own host only, where joining is not needed",
                remedy="to serve other hosts, start it with --listen 0.0.0.0:7117",
            )
        if isinstance(request, m.CreateToken):
            return await self._create_token(authority, request)
        if isinstance(request, m.RevokeToken):
            await self._in_store(authority.tokens.revoke, request.id)
            log.warning("token_revoked", token_id=request.id)
            return {"id": request.id}
        if isinstance(request, m.ListTokens):
            return {"tokens": authority.tokens.listed(now_s=authority.now_s())}
        if isinstance(request, m.ListCredentials):
            return {"credentials": authority.credentials.listed(now_s=authority.now_s())}
        if isinstance(request, m.ShowAuthority):
            expires = authority.certificate.not_valid_after_utc
            return {"sha256": authority.sha256, "expires_s": expires.timestamp()}
        return await self._revoke(authority, request.name)

    async def _create_token(self, authority: Authority, request: m.CreateToken) -> dict[str, Any]:
        names = split_names(request.names)
        token, expires_s = await self._in_store(
            lambda: authority.create_token(
                request.role,
                life_s=request.life_s,
                coordinators=self._port.coordinators,
                uses=request.uses,
                names=names,
                replaces=request.replaces,
            )
        )
        log.info("token_created", token_id=token.id, role=token.role, expires_s=expires_s)
        return {
            "id": token.id,
            "role": token.role,
            "expires_s": expires_s,
            "uses": max(request.uses, len(names)),
            "names": list(names),
            "token": token.word(),
        }

    async def _revoke(self, authority: Authority, name: str) -> dict[str, Any]:
        """Revoke a credential, to the end even if the caller has disconnected: it is recorded."""
        task = asyncio.create_task(self._take_back(authority, name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _take_back(self, authority: Authority, name: str) -> dict[str, Any]:
        """Revoke, close its connections and evict its workers before anything else can happen."""
        revoked: list[IssuedRecord] = await self._in_store(
            lambda: authority.credentials.revoke(name, now_s=authority.now_s())
        )
        evicted = self.evict(revoked)
        return {
            "revoked": [
                {"serial": one.serial, "role": one.role, "name": one.name} for one in revoked
            ],
            "evicted": evicted,
        }

    def evict(self, revoked: Iterable[IssuedRecord], how: str = "was revoked") -> list[str]:
        """Close all connections of these certificates; returns the workers that were evicted.

        All in one turn of the event loop, so that no worker whose credential was revoked is in the
        next generation.
        """
        evicted = []
        for one in revoked:
            why = f"the credential {one.role}/{one.name} ({one.serial}) {how}"
            log.warning("credential_revoked", role=one.role, name=one.name, serial=one.serial)
            workers = self._workers_of(one.serial) if one.role == WORKER else []
            for worker in workers:
                self._handle(Revoked(name=worker, reason=why))
            self._port.end([one.serial], why)
            evicted += workers
        return evicted
