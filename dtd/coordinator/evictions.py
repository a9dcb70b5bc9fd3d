"""What follows when credentials count no more: connections end, and workers are evicted.

Everything happens before anything else can, so that nobody whose credential was taken back is in
the next generation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog

from dtd.coordinator.control_port import ControlPort
from dtd.core.membership.events import Event, Revoked
from dtd.net.link import Link
from dtd.security.credential_book import IssuedRecord
from dtd.security.identity import WORKER
from dtd.wire import messages as m

log = structlog.get_logger()


class Evictions:
    """Puts those out whose credentials were taken back.

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
        """End all that these certificates have opened; returns the workers that were evicted."""
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
        """Have all workers remember what was revoked (`dtd.coordinator.revocation_desk`)."""
        if self._port.authority is not None:
            document = await self._in_store(self._port.authority.revocations)
            for link in self._links():
                link.send(m.Revocations(), document)
