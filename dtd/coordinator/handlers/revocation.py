"""The effects of revoking credentials, and workers' lists of revocations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import structlog

from dtd.cluster.events import Event, Revoked
from dtd.coordinator.control_port import ControlPort
from dtd.coordinator.throttles import Contain, SingleAnswers, go_on
from dtd.errors import DtdError
from dtd.limits.rates import Pacing
from dtd.net.link import Link
from dtd.security.authority import Authority
from dtd.security.credential_book import IssuedRecord
from dtd.security.identity import WORKER
from dtd.wire import messages as m

# --- the effects of a revocation: connections are closed, and workers are evicted --------------
# All of this happens in one turn of the event loop, so that no member whose credential was revoked
# is in the next generation.


log = structlog.get_logger()


class Evictions:
    """Evicts members whose credentials were revoked.

    Args:
        port: ends the connections.
        handle: hands an event to the core.
        workers_of: the registered workers that a certificate speaks for.
        links: the connections of all registered workers.
        in_store: runs a blocking function in the thread where all writing is done.
    """

    def __init__(
        self,
        port: ControlPort,
        *,
        handle: Callable[[Event], None],
        workers_of: Callable[[str], list[str]],
        links: Callable[[], Iterable[Link]],
        in_store: Callable[..., Awaitable[Any]],
    ) -> None:
        self._port = port
        self._handle = handle
        self._workers_of = workers_of
        self._links = links
        self._in_store = in_store

    def put_out(self, revoked: Iterable[IssuedRecord], how: str = "was revoked") -> list[str]:
        """Close all connections of these certificates; returns the workers that were evicted."""
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

    async def tell_all(self) -> None:
        """Have all workers remember what was revoked (`dtd.coordinator.handlers.revocation`)."""
        if self._port.authority is not None:
            document = await self._in_store(self._port.authority.revocations)
            for link in self._links():
                link.send(m.Revocations(), document)


# --- has workers remember revocations, for a coordinator that is restored from a backup --------
# Each worker reports the revocations that it remembers when it has registered, and receives the
# current list then and after each revocation.  Revocations that only the worker knows are applied
# here, too.


LISTS_PER_S: Final = 2.0
LISTS_AT_ONCE: Final = 128.0
"""Burst of one credential, on all its connections: each list is signed or verified."""


class RevocationHandler:
    """Sends revocations to workers, and receives those that they remember.

    Args:
        port: the control port, with the authority.
        in_store: runs a blocking function in the thread where all writing is done.
        evictions: evicts members that turn out to be revoked.
        contain: where an error ends that keeps a list from being answered.
    """

    def __init__(
        self,
        port: ControlPort,
        in_store: Callable[..., Awaitable[Any]],
        evictions: Evictions,
        contain: Contain,
    ) -> None:
        self._port = port
        self._in_store = in_store
        self._evictions = evictions
        self._answers = SingleAnswers("a REVOCATIONS", contain)
        self._begun: set[asyncio.Task[None]] = set()
        self._pacing = Pacing(rate_per_s=LISTS_PER_S, burst=LISTS_AT_ONCE)

    def heard(self, link: Link, document: bytes) -> None:
        """Take a worker's list of revoked credentials.

        Raises:
            ProtocolError: REFUSED, it does not wait for an answer.
        """
        authority = self._port.authority
        if authority is not None:
            self._answers.begin(link, lambda: self._answer(link, authority, document))

    def forget(self, link: Link) -> None:
        """The connection is gone; a list that is being taken in is taken in all the same."""
        task = self._answers.forget(link)
        if task is not None and task not in self._begun:
            task.cancel()

    async def _answer(self, link: Link, authority: Authority, document: bytes) -> None:
        """Answer in this worker's turn; its next list is taken when this answer has been read."""
        who = link.identity
        await go_on(self._pacing, (who.role, who.name) if who is not None else "")
        task = asyncio.current_task()
        assert task is not None
        self._begun.add(task)
        try:
            await self._merge(link, authority, document)
        finally:
            self._begun.discard(task)
        await self._answers.answered(link)

    async def _merge(self, link: Link, authority: Authority, document: bytes) -> None:
        """A refused list is no reason to reject a worker: it may be from another cluster."""
        known = await self._in_store(authority.revocations)
        revoked: list[IssuedRecord] = []
        if document and document.partition(b"\n")[2] != known.partition(b"\n")[2]:
            try:
                revoked = await self._in_store(authority.merge_revocations, document)
            except DtdError as error:
                log.warning("revocations_not_believed", host=link.peer_host(), reason=error.message)
        if revoked:
            self._evictions.put_out(revoked, "was revoked before this coordinator was restored")
            await self._evictions.tell_all()
        else:
            link.send(m.Revocations(), await self._in_store(authority.revocations))
