"""Answers operators' requests.

Requests on one connection are answered in order, one RESULT (or ERROR) each, and each when the
answer before it has been read (`dtd.coordinator.throttles`).  `Queries` answers requests that
change nothing, `Commands` performs the others; the core decides.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import time
from typing import Any, Final

import msgpack

from dtd.cluster.records import Job
from dtd.cluster.status import EndedJob
from dtd.coordinator.audit_log import Caller
from dtd.coordinator.handlers.access import AccessRequest
from dtd.coordinator.handlers.api import CoordinatorApi
from dtd.coordinator.handlers.commands import Commands, Order
from dtd.coordinator.handlers.profiles import Profiles
from dtd.coordinator.handlers.queries import QUESTIONS, Queries
from dtd.coordinator.handlers.runs import annotate_job
from dtd.coordinator.models import ModelRequest
from dtd.coordinator.throttles import Turns, read_out
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.link import Link
from dtd.wire import messages as m

Request = tuple[m.Message, bytes]
SweepRequest = m.BeginSweep | m.ShowSweep | m.CancelSweep | m.ListSweeps

CTL_REQUESTS: Final = tuple(m.from_opener(m.Role.CTL) - {m.Error, m.Goodbye, m.Renew})
MAX_PENDING_REQUESTS: Final = 64
MAX_PENDING_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of their payloads: pieces of packages, which are sent one after the other."""


class RequestHandler:
    """Answers operators' requests, in order per connection.

    Args:
        coordinator: the daemon behind it.
        last_job: the job that ended last before the daemon was started.
    """

    def __init__(self, coordinator: CoordinatorApi, *, last_job: EndedJob | None) -> None:
        self._coordinator = coordinator
        self._questions = Queries(coordinator, last_job=last_job)
        self._orders = Commands(coordinator)
        self._profiles = Profiles(coordinator)
        self._turns = Turns()
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

    def job_ended(self, ended: Job) -> None:
        """Wake the requests that wait for the job."""
        self._questions.last_job = EndedJob(job=ended, ended_s=time.time())
        self._orders.job_ended(ended)

    def something_happened(self) -> None:
        """Wake the requests that follow events."""
        self._questions.something_happened()

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
            functools.partial(self._answer, caller, request, payload),
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
                async with self._turns.turn(link, request):
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

    async def _answer(self, caller: Caller, request: m.Message, payload: bytes) -> dict[str, Any]:
        if isinstance(request, m.PutPackage):
            return await self._coordinator.counter(request).put(request, payload)
        if isinstance(request, QUESTIONS):
            return await self._questions.answer(request)
        if isinstance(request, AccessRequest):
            return await self._coordinator.access.answer(request)
        if isinstance(request, m.Examine):
            return await self._coordinator.measurement_broker.examine(request)
        if isinstance(request, m.OpenWeb):
            return await self._coordinator.web.open(caller)
        if isinstance(request, m.Profile):
            return await self._profiles.profile(request)
        if isinstance(request, m.Delete):
            return await self._coordinator.deletions.delete(request)
        if isinstance(request, ModelRequest):
            return await self._coordinator.models.carry_out(request, _named(caller))
        if isinstance(request, SweepRequest):
            return await self._answer_sweep(request)
        if isinstance(request, m.AnnotateJob):
            return await annotate_job(self._coordinator, request)
        assert isinstance(request, Order)
        return await self._orders.carry_out(request)

    async def submit(self, request: m.SubmitJob) -> dict[str, Any]:
        """Submit a job for the coordinator itself.

        Raises:
            DtdError: it cannot be done, or the job is not valid.
        """
        return await self._orders.carry_out(request)

    async def _answer_sweep(self, request: SweepRequest) -> dict[str, Any]:
        sweeps = self._coordinator.sweeps
        if isinstance(request, m.BeginSweep):
            await self._coordinator.packages.check(request.package)
            return await sweeps.begin(request)
        if isinstance(request, m.CancelSweep):
            return await sweeps.cancel(request.sweep)
        if isinstance(request, m.ShowSweep):
            return await sweeps.show(request.sweep)
        return await sweeps.listing()


def _named(caller: Caller) -> str:
    """Return the caller's name in the audit log."""
    who = caller.identity
    return f"{who.role}/{who.name}" if who is not None else ""
