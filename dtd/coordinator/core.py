"""The coordinator's state, decisions and effects, as its services and request handlers see them.

What needs only this is a service (`dtd.coordinator.coordinator` has all of them); nothing here
knows one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import sqlite3
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from dtd import __version__, diagnostics
from dtd.cluster.events import (
    Disconnect,
    Effect,
    Event,
    Incident,
    Item,
    JobEnded,
    JobSaved,
    Outbox,
    SaveJob,
    Send,
    Undeliverable,
)
from dtd.cluster.records import Job
from dtd.cluster.several_jobs.pools import Pools
from dtd.cluster.state import ClusterState, CoordinatorIdentity
from dtd.cluster.status import Diagnostics, EndedJob, status_of
from dtd.config import CoordinatorConfig
from dtd.coordinator.connections.control_port import ControlPort
from dtd.coordinator.connections.worker_links import WorkerLinks
from dtd.coordinator.containment import Containment
from dtd.coordinator.driver import Driver
from dtd.coordinator.handlers.answers import Answers
from dtd.coordinator.handlers.packages import PACKAGES, WEIGHTS, PackageTransfer
from dtd.coordinator.services.audit import AuditLog, Caller
from dtd.coordinator.services.audit_file import AuditFile
from dtd.coordinator.store.database import StoreThread, Turn
from dtd.coordinator.store.store import Store, job_body
from dtd.diagnostics import Diagnostic
from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError, RequestRefused
from dtd.net.link import MAX_QUEUED_CONTROL_BYTES, Link
from dtd.packages.archives import WEIGHTS as WEIGHTS_KIND
from dtd.packages.archives import Archives
from dtd.rules import did_you_mean
from dtd.security.authority import DIRECTORY, open_data_key
from dtd.wire import messages as m

log = structlog.get_logger()

T = TypeVar("T")

Settled = asyncio.Future[None]
"""A future that is done when all earlier decisions are written down."""

# Incidents that are as it should be; all others are logged as warnings.
QUIET_INCIDENTS: Final = frozenset(
    {
        *("worker_registered", "job_started", "job_done"),
        *("generation_forming", "generation_running", "recovered", "link_good"),
        *("sweep_ended", "data_copied"),
    }
)


class Source(NamedTuple):
    """A worker's data port, a resource there, and a ticket for it."""

    host: str
    port: int
    resource: str
    ticket_expires_s: int
    ticket_key: bytes
    others: tuple[str, ...]

    def shown(self) -> dict[str, Any]:
        """Return the address and the ticket as answers to dtdctl have them."""
        return {
            "data_host": self.host,
            "data_port": self.port,
            "data_others": list(self.others),
            "ticket_expires_s": self.ticket_expires_s,
            "ticket_key": self.ticket_key,
        }


def checkpoint_resource(directory: str) -> str:
    """The resource of a checkpoint, by its directory on a worker's disk."""
    path = PurePosixPath(directory)
    return f"checkpoint/{path.parent.name}/{path.name}"


class Core:
    """State and decisions; belongs to the running event loop.

    Attributes:
        store_id: id of the store, which a restored backup has as well.
        complaints: tell why a disk is unreliable, or nothing.
    """

    def __init__(
        self, config: CoordinatorConfig, store: Store, *, new_link: Callable[[], Link]
    ) -> None:
        self.config = config
        self.store = store
        self.store_id = store.identity()
        self.address = ""
        self.started_s = time.monotonic()
        self.last_job = store.last_ended()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._next_number = store.next_job_number()
        self.news = asyncio.Event()
        self._ends: dict[str, asyncio.Future[Job]] = {}
        self._outbox: Outbox[Settled, Any] = Outbox()
        self._ready: asyncio.Queue[Item[Settled, Any]] = asyncio.Queue()
        self._not_written = ""
        self.containment = Containment(time.monotonic, self.incident)
        self.store_thread = StoreThread(self.store_failed)
        self.complaints = [self.store_thread.complaint]
        self.audit = AuditLog(AuditFile(config.state_dir), self.store_thread)
        self.answers = Answers(self.containment)
        self.links = WorkerLinks(
            open_data_key(config.state_dir / DIRECTORY), lambda: self._driver.now
        )
        self.membership = _membership(config, store)
        self._driver = Driver(
            self.membership, self.containment, perform=self.put, disconnect_all=self.links.fail_all
        )
        self.diagnostics = Diagnostics()
        self.port = ControlPort(config, new_link, self.note)
        # Hashing gigabytes must not hold up what generations wait for in the store's thread.
        self.weights_thread = StoreThread(self.store_failed)
        self.packages = PackageTransfer(
            Archives(config.state_dir / PACKAGES),
            self.store_thread,
            functools.partial(self.in_store, store.packages_in_use),
            self.answers,
        )
        self.weights = PackageTransfer(
            Archives(config.state_dir / WEIGHTS, WEIGHTS_KIND),
            self.weights_thread,
            functools.partial(self.in_store, store.weights_in_use),
            self.answers,
        )

    # --- decisions and their effects -----------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Hand an event to the membership core."""
        self._driver.handle(event)

    def stop(self) -> None:
        """Decide nothing more, and end what is under way."""
        self._driver.stop()
        for task in self._tasks:
            task.cancel()

    def incident(self, kind: str, message: str, *, worker: str = "", **details: Any) -> None:
        """Something that the core has no part in, for an operator to read."""
        self.put(Incident(kind=kind, message=message, worker=worker, details=details))

    def decided(self, effect: Effect) -> None:
        """An effect was decided, and is not performed yet."""
        if isinstance(effect, Incident) and effect.kind == "checkpoint_failed":
            self.note(diagnostics.disk(effect.worker, effect.message))

    def note(self, diagnostic: Diagnostic) -> bool:
        """Show it in `dtdctl status`; returns whether it is new."""
        return self.diagnostics.note(diagnostic, time.monotonic())

    def _on_ended(self, effect: JobEnded) -> None:
        self.last_job = EndedJob(job=effect.job, ended_s=time.time())
        waiting = self._ends.pop(effect.job.id, None)
        if waiting is not None:
            waiting.set_result(effect.job)

    async def end_of(self, job_id: str) -> Job:
        waiting = self._ends.get(job_id)
        if waiting is None:
            waiting = self._ends[job_id] = self._loop.create_future()
        return await asyncio.shield(waiting)

    def status(self, clusters: Sequence[ClusterState], **more: Any) -> dict[str, Any]:
        """The clusters' state, with what `dtd.cluster.status.status_of` is told besides."""
        return status_of(
            clusters,
            address=self.address,
            uptime_s=time.monotonic() - self.started_s,
            version=__version__,
            now=self.now,
            **more,
        )

    # --- effects, in the order in which they were decided ----------------------------------------
    #
    # Durable effects are written before any later message is sent; other effects do not wait for
    # the disk (`dtd.cluster.events`).  Incidents go to the log, and to the store asynchronously.

    def put(self, effect: Effect) -> None:
        """Take an effect that was decided, with what it means now.

        A job is written as it is, not as it will be, and a message goes to the connection that
        the worker has, not to one that it may have after the store has written.
        """
        with self.containment.around(f"deciding on {type(effect).__name__}"):
            self.decided(effect)
            about: Any = None
            if isinstance(effect, SaveJob):
                about = job_body(effect.job)
            elif isinstance(effect, Send | Disconnect):
                about = self.links.link_to(effect.name)
            self._queue(Item(effect, about))

    async def perform(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                item = await self._ready.get()
                effect = item.effect
                if isinstance(effect, SaveJob):  # the outbox gives out one at a time
                    tasks.create_task(self._write(effect, item.about))
                    continue
                link = item.about if isinstance(effect, Send) else None
                name = effect.name if isinstance(effect, Send) else ""
                with self.containment.around(_named(effect), link, worker=name):
                    self._perform(item)

    async def settled(self) -> None:
        """Return when every effect so far is done: all decisions are written down."""
        done: Settled = asyncio.get_running_loop().create_future()
        self._queue(Item(done, None))
        await done

    def _queue(self, item: Item[Settled, Any]) -> None:
        for ready in self._outbox.put(item):
            self._ready.put_nowait(ready)

    def _perform(self, item: Item[Settled, Any]) -> None:
        effect, about = item.effect, item.about
        if isinstance(effect, Send):
            self._send(effect, about)
        elif isinstance(effect, asyncio.Future) and not effect.done():  # its caller may be gone
            effect.set_result(None)
        elif isinstance(effect, Incident):
            self._on_incident(effect)
        elif isinstance(effect, Disconnect) and about is not None:
            about.fail(ProtocolError(ErrorCode.REFUSED, effect.reason))
        elif isinstance(effect, JobEnded):
            self._on_ended(effect)

    async def _write(self, effect: SaveJob, body: dict[str, Any]) -> None:
        with self.containment.around(f"writing down job {effect.job.id}"):
            await self._save_job(effect, body)
        for ready in self._outbox.written():
            self._ready.put_nowait(ready)

    async def _save_job(self, effect: SaveJob, body: dict[str, Any]) -> None:
        """A full disk must not end the training that the job is about.

        The core hears of what announces a generation, since that must be written before.
        """
        number, failure = number_of(body["id"]), ""
        try:
            await self.store_thread.run(self.store.save_job, number, body, turn=Turn.URGENT)
        except Exception as error:  # noqa: BLE001 - the core must hear that it is not written
            failure = str(error) or type(error).__name__
            if not isinstance(error, sqlite3.Error | OSError):
                self.containment.failed(error, f"writing down job {body['id']}")
            if failure != self._not_written:  # it is tried again and again
                log.error("store_failed", job=body["id"], error=failure)
        self._not_written = failure
        if effect.announces:
            self.handle(JobSaved(job=body["id"], generation=effect.announces, failure=failure))

    def _send(self, effect: Send, link: Link | None) -> None:
        if link is None:
            return
        try:
            link.send(self.links.filled(effect.message, effect.name))
        except LocalProtocolError as error:
            if isinstance(effect.message, m.Prepare | m.Assign | m.Save):
                self.handle(Undeliverable(job=effect.message.job, reason=error.message))
            raise
        if link.queued_bytes() > MAX_QUEUED_CONTROL_BYTES:
            log.warning("worker_too_slow", worker=effect.name, queued_bytes=link.queued_bytes())
            link.abort()

    def _on_incident(self, incident: Incident) -> None:
        write = log.info if incident.kind in QUIET_INCIDENTS else log.warning
        write(incident.kind, **incident_fields(incident))
        self.store_thread.later(self.store.add_incident, incident)
        self.news.set()
        self.news = asyncio.Event()

    # --- tasks ---------------------------------------------------------------------------------

    def keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task that goes on until it ends or the daemon does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def begin(self, doing: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a task that nobody awaits; unexpected errors are reported."""

        async def contained() -> None:
            with self.containment.around(doing):
                await work()

        self.keep(contained())

    # --- the store -----------------------------------------------------------------------------

    async def in_store(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking method of the store in its thread, in order."""
        return await self.store_thread.run(function, *arguments)

    async def after_lines(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a method that reads jobs' output, once all output so far is written."""
        return await self.store_thread.run(function, *arguments, turn=Turn.PATIENT)

    async def known_job(self, job_id: str) -> dict[str, Any]:
        """A job as it is written down."""
        found = await self.in_store(self.store.job, job_id)
        if found is None:
            known = [job["id"] for job in await self.in_store(self.store.jobs)]
            near = did_you_mean(job_id, known)
            raise RequestRefused(f"job {job_id!r} does not exist{near}", remedy="see `dtdctl jobs`")
        return found

    def transfer_of(self, message: m.PutPackage | m.GetPackage) -> PackageTransfer:
        """Return what transfers files of the message's kind."""
        return self.weights if message.kind == WEIGHTS else self.packages

    def new_job_id(self, name: str) -> str:
        number, self._next_number = self._next_number, self._next_number + 1
        return f"{name}-{number}"

    def store_failed(self, error: BaseException) -> None:
        """Report an error of a call that nothing waits for; in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.containment.failed, error, "a call to the store")

    # --- callers -------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self._driver.now

    def source(self, worker: str, resource: str) -> Source:
        """Return the place of a connected worker's resource, and a ticket for it."""
        at = self.membership.cluster_of(worker).workers[worker].registration
        expires_s, key = self.links.ticket(worker, resource)
        return Source(at.data_host, at.data_port, resource, expires_s, key, at.others)

    def check_request(self, caller: Caller, message: m.Message) -> None:
        """Check that the caller may send this request; refusals are in the audit log."""
        try:
            self.port.check(caller, message)
        except ProtocolError as error:
            self.audit.refused(caller, message, error.message)
            raise


def number_of(job_id: str) -> int:
    """The number of a job, with which its id ends."""
    return int(job_id.rpartition("-")[2])


def first_number(store: Store) -> int:
    """The number that the generations of this process exceed.

    A store that has gone back may not know the last ones; none of them began in the future.
    """
    begun = store.next_job_number() > 1
    return max(store.last_generation(), int(time.time())) if begun else 0


def _membership(config: CoordinatorConfig, store: Store) -> Pools:
    return Pools(
        heartbeat_interval_s=config.heartbeat_interval_s,
        heartbeat_timeout_s=config.heartbeat_timeout_s,
        last_generation=first_number(store),
        identity=CoordinatorIdentity(version=__version__, host=socket.gethostname()),
    )


def _named(effect: Any) -> str:
    """Return the name of an effect, for people."""
    if isinstance(effect, Send):
        return f"sending {m.message_name(type(effect.message))}"
    return f"an effect of kind {type(effect).__name__}"


def incident_fields(incident: Incident) -> dict[str, Any]:
    """An incident as fields of a log line; its details stand beside what every incident has."""
    usual = {
        "message": incident.message,
        "job": incident.job,
        "worker": incident.worker,
        "generation": incident.generation,
        "step": incident.step,
    }
    details = {key: value for key, value in incident.details.items() if not usual.get(key)}
    return {**usual, **details}
