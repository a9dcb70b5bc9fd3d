"""Operators' requests: which function answers which, and in what order.

Requests on one connection are answered in order, one RESULT (or ERROR) each, and each when the
answer before it has been read (`dtd.coordinator.throttles`).
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgpack

from dtd.coordinator.audit import Caller
from dtd.coordinator.coordinator import Coordinator
from dtd.coordinator.handlers import credentials, jobs, queries
from dtd.coordinator.throttles import read_out
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.link import Link
from dtd.wire import messages as m

Request = tuple[m.Message, bytes]
Handler = Callable[[Coordinator, Caller, Any], Awaitable[dict[str, Any]]]

HANDLERS: Final[Mapping[type[m.Message], Handler]] = {
    m.GetStatus: queries.status,
    m.GetFigures: queries.figures,
    m.GetMetrics: queries.metrics,
    m.ListJobs: queries.jobs,
    m.ShowJob: queries.job,
    m.CompareJobs: queries.compare_jobs,
    m.ReadLogs: queries.logs,
    m.ReadEvents: queries.events,
    m.ReadAudit: queries.audit,
    m.ListCheckpoints: queries.checkpoints,
    m.SubmitJob: lambda coordinator, _, request: jobs.submit(coordinator, request),
    m.WaitJob: jobs.wait,
    m.CancelJob: jobs.cancel,
    m.ResumeJob: jobs.resume,
    m.KillWorker: jobs.kill,
    m.DrainWorker: jobs.drain,
    m.AnnotateJob: jobs.annotate,
    m.Delete: lambda coordinator, _, request: coordinator.deletions.delete(request),
    m.Examine: lambda coordinator, _, request: coordinator.broker.examine(request),
    m.Profile: lambda coordinator, _, request: coordinator.profiles.profile(request),
    m.OpenWeb: lambda coordinator, caller, _: coordinator.web.open(caller),
    m.ListModels: lambda coordinator, _, request: coordinator.models.listed(request),
    m.RegisterModel: lambda coordinator, caller, request: coordinator.models.register(
        request, _named(caller)
    ),
    m.AliasModel: lambda coordinator, _, request: coordinator.models.alias(request),
    m.DescribeModel: lambda coordinator, _, request: coordinator.models.describe(request),
    m.CopyModel: lambda coordinator, _, request: coordinator.models.copy(request),
    m.DeleteModel: lambda coordinator, _, request: coordinator.models.delete(request),
    m.BeginSweep: lambda coordinator, _, request: coordinator.sweeps.begin(request),
    m.CancelSweep: lambda coordinator, _, request: coordinator.sweeps.cancel(request.sweep),
    m.ShowSweep: lambda coordinator, _, request: coordinator.sweeps.show(request.sweep),
    m.ListSweeps: lambda coordinator, _caller, _request: coordinator.sweeps.listing(),
    m.CreateToken: credentials.create_token,
    m.ListTokens: credentials.list_tokens,
    m.RevokeToken: credentials.revoke_token,
    m.ListCredentials: credentials.list_credentials,
    m.RevokeCredential: credentials.revoke,
    m.ShowAuthority: credentials.show_authority,
}
"""The handler of each request; PUT_PACKAGE alone has a payload."""

CTL_REQUESTS: Final[tuple[type[m.Message], ...]] = (m.PutPackage, *HANDLERS)
MAX_PENDING_REQUESTS: Final = 64
MAX_PENDING_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of their payloads: pieces of packages, which are sent one after the other."""


class RequestQueues:
    """Answers operators' requests, in order per connection."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._pending: dict[Link, asyncio.Queue[Request]] = {}
        self._pending_bytes: dict[Link, int] = {}
        self._tasks: dict[Link, asyncio.Task[None]] = {}

    def ask(self, link: Link, request: m.Message, payload: memoryview) -> None:
        """Queue a request; the payload is copied.

        Raises:
            ProtocolError: too many are unanswered on this connection.
        """
        if link not in self._pending:
            self._pending[link] = asyncio.Queue(MAX_PENDING_REQUESTS)
            self._tasks[link] = asyncio.create_task(self._contained(link, self._pending[link]))
        waiting_bytes = self._pending_bytes.get(link, 0) + len(payload)
        if waiting_bytes > MAX_PENDING_BYTES:
            raise ProtocolError(
                ErrorCode.REFUSED, f"requests of {MAX_PENDING_BYTES} bytes are unanswered"
            )
        self._pending_bytes[link] = waiting_bytes
        try:
            self._pending[link].put_nowait((request, bytes(payload)))
        except asyncio.QueueFull:
            raise ProtocolError(
                ErrorCode.REFUSED, f"{MAX_PENDING_REQUESTS} requests are unanswered"
            ) from None

    def forget(self, link: Link) -> None:
        """The connection is gone."""
        self._pending.pop(link, None)
        self._pending_bytes.pop(link, None)
        task = self._tasks.pop(link, None)
        if task is not None:
            task.cancel()

    async def carry_out(
        self, caller: Caller, request: m.Message, payload: bytes = b""
    ) -> dict[str, Any]:
        """Perform a permitted request, and enter it if it changes something.

        Raises:
            DtdError: it cannot be done.
        """
        return await self._coordinator.audit.around(
            caller,
            request,
            functools.partial(_answer, self._coordinator, caller, request, payload),
            payload_bytes=len(payload),
            told=dict,
        )

    async def _contained(self, link: Link, requests: asyncio.Queue[Request]) -> None:
        with self._coordinator.containment.around("answering a request", link):
            await self._serve(link, requests)

    async def _serve(self, link: Link, requests: asyncio.Queue[Request]) -> None:
        while True:
            request, payload = await requests.get()
            if link not in self._pending_bytes:
                return  # forgotten while this task ran, which ends it only where it has to wait
            self._pending_bytes[link] -= len(payload)
            try:
                answer = await self.carry_out(link, request, payload)
                due = self._coordinator.renewals.is_due(link)
                link.send(m.Result(renew=due), msgpack.packb(answer, use_bin_type=True))
                del answer
                await read_out(link)
            except DtdError as error:
                link.fail(ProtocolError(ErrorCode.REFUSED, error.message, remedy=error.remedy))
                return
            except (OSError, sqlite3.Error) as error:
                why = f"the coordinator's store failed: {error}"
                link.fail(ProtocolError(ErrorCode.REFUSED, why, remedy="check its disk"))
                return


async def _answer(
    coordinator: Coordinator, caller: Caller, request: m.Message, payload: bytes
) -> dict[str, Any]:
    if isinstance(request, m.PutPackage):
        return await coordinator.counter(request).put(request, payload)
    return await HANDLERS[type(request)](coordinator, caller, request)


def _named(caller: Caller) -> str:
    """Return the caller's name in the audit log."""
    who = caller.identity
    return f"{who.role}/{who.name}" if who is not None else ""
