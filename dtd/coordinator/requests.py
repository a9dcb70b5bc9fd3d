"""What operators ask of the coordinator, and how they are answered.

Requests on one connection are answered in order, one RESULT (or ERROR) each.  Answers are made of
the membership's books and the store; decisions are the core's.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import msgpack

from dtd import __version__, job
from dtd.coordinator.store import Store
from dtd.core.membership import Membership
from dtd.core.membership_events import (
    CancelRequested,
    DrainRequested,
    Event,
    Job,
    JobState,
    KillRequested,
    ResumeRequested,
    Submitted,
)
from dtd.core.status import EndedJob, status_of
from dtd.errors import DtdError, ErrorCode, ProtocolError, RequestRefused
from dtd.net.link import Link
from dtd.wire import messages as m
from dtd.wire.connection import FROM_OPENER

T = TypeVar("T")

CTL_REQUESTS: Final = tuple(FROM_OPENER[m.Role.CTL] - {m.Error, m.Goodbye})
SIGNALS: Final = ("KILL", "TERM", "STOP")
MAX_PENDING_REQUESTS: Final = 64
ENDED_STATES: Final = ("done", "failed", "cancelled")


class Coordinator(Protocol):
    """What the desk needs of the daemon behind it."""

    address: str
    started_s: float
    store: Store
    membership: Membership

    @property
    def now(self) -> float:
        """The clock that the core sees."""
        ...

    def handle(self, event: Event) -> None:
        """Hand an event to the core; raises RequestRefused."""
        ...

    async def settled(self) -> None:
        """Return when every effect so far is done."""
        ...

    async def in_store(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking method of the store."""
        ...

    def new_job_id(self, name: str) -> str:
        """A fresh id for a job of this name."""
        ...

    def connected(self) -> frozenset[str]:
        """Names of the workers whose control connection stands."""
        ...


class RequestDesk:
    """Answers operators' requests, in order per connection.

    Args:
        coordinator: the daemon behind it.
        last_job: the job that ended last before the daemon was started.
    """

    def __init__(self, coordinator: Coordinator, *, last_job: EndedJob | None) -> None:
        self._coordinator = coordinator
        self._last_job = last_job
        self._pending: dict[Link, asyncio.Queue[m.Message]] = {}
        self._tasks: dict[Link, asyncio.Task[None]] = {}
        self._ended: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._news = asyncio.Event()

    def ask(self, link: Link, request: m.Message) -> None:
        """Queue a request.

        Raises:
            ProtocolError: too many are unanswered on this connection.
        """
        if link not in self._pending:
            self._pending[link] = asyncio.Queue(MAX_PENDING_REQUESTS)
            self._tasks[link] = asyncio.create_task(self._serve(link, self._pending[link]))
        try:
            self._pending[link].put_nowait(request)
        except asyncio.QueueFull:
            raise ProtocolError(
                ErrorCode.REFUSED, f"{MAX_PENDING_REQUESTS} requests are unanswered"
            ) from None

    def forget(self, link: Link) -> None:
        """The connection is gone."""
        self._pending.pop(link, None)
        task = self._tasks.pop(link, None)
        if task is not None:
            task.cancel()

    def job_ended(self, ended: Job) -> None:
        """Wake whoever waits for the job."""
        self._last_job = EndedJob(job=ended, ended_s=time.time())
        waiting = self._ended.pop(ended.id, None)
        if waiting is not None:
            result = {"state": ended.state.value, "reason": ended.reason, "result": ended.result}
            waiting.set_result({"job": ended.id, **result})

    def something_happened(self) -> None:
        """Wake whoever follows events."""
        self._news.set()
        self._news = asyncio.Event()

    async def _serve(self, link: Link, requests: asyncio.Queue[m.Message]) -> None:
        while True:
            request = await requests.get()
            try:
                answer = await self._answer(request)
            except DtdError as error:
                link.fail(ProtocolError(ErrorCode.REFUSED, error.message, remedy=error.remedy))
                return
            except sqlite3.Error as error:
                why = f"the coordinator's store fails: {error}"
                link.fail(ProtocolError(ErrorCode.REFUSED, why, remedy="look after its disk"))
                return
            link.send(m.Result(), msgpack.packb(answer, use_bin_type=True))

    async def _answer(self, request: m.Message) -> dict[str, Any]:
        if isinstance(request, m.GetStatus):
            return self._status()
        if isinstance(request, m.SubmitJob):
            return await self._submit(request)
        if isinstance(request, m.WaitJob):
            return await self._wait(request.job)
        if isinstance(request, m.CancelJob):
            return await self._cancel(request.job)
        if isinstance(request, m.ResumeJob):
            return await self._resume(request.job)
        if isinstance(request, m.KillWorker | m.DrainWorker):
            return self._kill_or_drain(request)
        return await self._read(request)

    async def _read(self, request: m.Message) -> dict[str, Any]:
        store = self._coordinator.store
        in_store = self._coordinator.in_store
        if isinstance(request, m.ListJobs):
            return {"jobs": await in_store(store.jobs)}
        if isinstance(request, m.ReadLogs):
            await self._known_job(request.job)
            lines = await in_store(store.lines, request.job, request.after)
            return {"lines": lines, "next": lines[-1]["seq"] if lines else request.after}
        if isinstance(request, m.ReadEvents):
            return await self._events(request)
        assert isinstance(request, m.ListCheckpoints)
        found = await in_store(store.checkpoints, request.job)
        answer: dict[str, Any] = {"checkpoints": [self._checkpoint(one) for one in found]}
        if request.job:
            answer["spec"] = (await self._known_job(request.job))["spec"]
        return answer

    def _status(self) -> dict[str, Any]:
        coordinator = self._coordinator
        return status_of(
            coordinator.membership.books,
            explain=coordinator.membership.explain(),
            address=coordinator.address,
            uptime_s=time.monotonic() - coordinator.started_s,
            version=__version__,
            now=coordinator.now,
            last_job=self._last_job,
        )

    async def _submit(self, request: m.SubmitJob) -> dict[str, Any]:
        spec = job.from_mapping(request.spec, source="submitted job")
        mode = ""
        if request.from_job:
            parent = await self._known_job(request.from_job)
            mode = "weights" if parent["state"] == JobState.DONE else "resume"
            await self._has_checkpoint(request)
        job_id = self._coordinator.new_job_id(spec.job.name)
        submitted = Job(
            id=job_id,
            spec=job.to_mapping(spec),
            from_job=request.from_job,
            from_step=request.from_step,
            from_mode=mode,
        )
        self._coordinator.handle(Submitted(job=submitted))
        await self._coordinator.settled()
        return {"job": job_id}

    async def _has_checkpoint(self, request: m.SubmitJob) -> None:
        store = self._coordinator.store
        found = await self._coordinator.in_store(store.checkpoints, request.from_job)
        steps = sorted({one["step"] for one in found})
        if not steps:
            raise RequestRefused(f"job {request.from_job} has no checkpoint")
        if request.from_step and request.from_step not in steps:
            raise RequestRefused(
                f"job {request.from_job} has no checkpoint of step {request.from_step}",
                remedy=f"kept steps: {', '.join(map(str, steps))}",
            )

    async def _wait(self, job_id: str) -> dict[str, Any]:
        known = await self._known_job(job_id)
        if known["state"] in ENDED_STATES:
            return {"job": job_id, **{key: known[key] for key in ("state", "reason", "result")}}
        if job_id not in self._ended:
            self._ended[job_id] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._ended[job_id])

    async def _cancel(self, job_id: str) -> dict[str, Any]:
        self._coordinator.handle(CancelRequested(job=job_id))
        return await self._settled_state(job_id)

    async def _resume(self, job_id: str) -> dict[str, Any]:
        self._coordinator.handle(ResumeRequested(job=job_id))
        return await self._settled_state(job_id)

    async def _settled_state(self, job_id: str) -> dict[str, Any]:
        await self._coordinator.settled()
        return {"job": job_id, "state": (await self._known_job(job_id))["state"]}

    def _kill_or_drain(self, request: m.KillWorker | m.DrainWorker) -> dict[str, Any]:
        if isinstance(request, m.DrainWorker):
            self._coordinator.handle(DrainRequested(name=request.name))
            return {"name": request.name}
        if request.signal not in SIGNALS:
            raise RequestRefused(
                f"signal {request.signal!r} is not offered", remedy=f"one of {', '.join(SIGNALS)}"
            )
        self._coordinator.handle(KillRequested(name=request.name, signal=request.signal))
        worker = self._coordinator.membership.books.workers[request.name]
        return {"name": request.name, "pid": worker.pid, "signal": request.signal}

    async def _events(self, request: m.ReadEvents) -> dict[str, Any]:
        store = self._coordinator.store
        while True:
            news = self._news
            found = await self._coordinator.in_store(store.events, request.after)
            if found or not request.follow:
                return {"events": found, "next": found[-1]["seq"] if found else request.after}
            await news.wait()

    def _checkpoint(self, found: dict[str, Any]) -> dict[str, Any]:
        worker = self._coordinator.membership.books.workers.get(found["worker"])
        alive = found["worker"] in self._coordinator.connected()
        return {
            **found,
            "name": found["directory"].rsplit("/", 1)[-1],
            "verified": True,
            "alive": alive,
            "data_host": worker.data_host if worker is not None else "",
            "data_port": worker.data_port if worker is not None else 0,
        }

    async def _known_job(self, job_id: str) -> dict[str, Any]:
        found = await self._coordinator.in_store(self._coordinator.store.job, job_id)
        if found is None:
            raise RequestRefused(f"job {job_id!r} does not exist", remedy="see `dtdctl jobs`")
        return found
