"""Performs the membership core's effects, in the order in which they were decided.

Durable effects are written before any later message is sent; other effects do not wait for the disk
(`dtd.cluster.events`).  Incidents go to the log, and to the store asynchronously.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from dtd.cluster.events import (
    Disconnect,
    Effect,
    Incident,
    Item,
    JobEnded,
    JobSaved,
    Outbox,
    SaveJob,
    Send,
    Undeliverable,
)
from dtd.coordinator.containment import Containment
from dtd.coordinator.store.store import Store, job_body
from dtd.coordinator.store.thread import StoreThread, Turn
from dtd.coordinator.worker_links import WorkerLinks
from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.net.link import MAX_QUEUED_CONTROL_BYTES, Link
from dtd.wire import messages as m

log = structlog.get_logger()

Settled = asyncio.Future[None]
"""A future that is done when all earlier decisions are written down."""

# Incidents that are as it should be; all others are logged as warnings.
QUIET_INCIDENTS: Final = frozenset(
    {
        *("worker_registered", "job_started", "job_done"),
        *("generation_forming", "generation_running", "recovered", "link_good"),
    }
)


class Effects:
    """The queue of effects, and their outcomes.

    Args:
        links: the workers' connections.
        store: where jobs and incidents are written.
        thread: the thread that the store's methods run in.
        job_numbers: number of each job in the store.
        handle: hands an event to the core: a job that announces a generation is written, or could
            not be, or its workers cannot be told of it.
        performed: told of the end of a job, once it is written down, and of incidents.
        containment: where an effect ends that cannot be performed.
    """

    def __init__(
        self,
        *,
        links: WorkerLinks,
        store: Store,
        thread: StoreThread,
        job_numbers: Mapping[str, int],
        handle: Callable[[JobSaved | Undeliverable], None],
        performed: Callable[[JobEnded | Incident], None],
        containment: Containment,
    ) -> None:
        self._links = links
        self._store = store
        self._thread = thread
        self._job_numbers = job_numbers
        self._handle = handle
        self._performed = performed
        self._containment = containment
        self._failing = ""
        self._outbox: Outbox[Settled, Any] = Outbox()
        self._ready: asyncio.Queue[Item[Settled, Any]] = asyncio.Queue()

    def put(self, effect: Effect) -> None:
        """Keep the order of effects, with what they mean now.

        A job is written as it is, not as it will be, and a message goes to the connection that
        the worker has, not to one that it may have after the store has written.
        """
        about: Any = None
        if isinstance(effect, SaveJob):
            about = job_body(effect.job)
        elif isinstance(effect, Send | Disconnect):
            about = self._links.link_to(effect.name)
        self._put(Item(effect, about))

    async def run(self) -> None:
        """Perform effects until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                item = await self._ready.get()
                effect = item.effect
                if isinstance(effect, SaveJob):  # the outbox gives out one at a time
                    tasks.create_task(self._write(effect, item.about))
                    continue
                link = item.about if isinstance(effect, Send) else None
                name = effect.name if isinstance(effect, Send) else ""
                with self._containment.around(_named(effect), link, worker=name):
                    self._perform(item)

    async def settled(self) -> None:
        """Return when every effect so far is done: all decisions are written down."""
        done: Settled = asyncio.get_running_loop().create_future()
        self._put(Item(done, None))
        await done

    def _put(self, item: Item[Settled, Any]) -> None:
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
            self._performed(effect)

    async def _write(self, effect: SaveJob, body: dict[str, Any]) -> None:
        with self._containment.around(f"writing down job {effect.job.id}"):
            await self._save_job(effect, body)
        for ready in self._outbox.written():
            self._ready.put_nowait(ready)

    async def _save_job(self, effect: SaveJob, body: dict[str, Any]) -> None:
        """A full disk must not end the training that the job is about.

        The core hears of what announces a generation, since that must be written before.
        """
        number, failure = self._job_numbers[body["id"]], ""
        try:
            await self._thread.run(self._store.save_job, number, body, turn=Turn.URGENT)
        except Exception as error:  # noqa: BLE001 - the core must hear that it is not written
            failure = str(error) or type(error).__name__
            if not isinstance(error, sqlite3.Error | OSError):
                self._containment.failed(error, f"writing down job {body['id']}")
            if failure != self._failing:  # it is tried again and again
                log.error("store_failed", job=body["id"], error=failure)
        self._failing = failure
        if effect.announces:
            self._handle(JobSaved(job=body["id"], generation=effect.announces, failure=failure))

    def _send(self, effect: Send, link: Link | None) -> None:
        if link is None:
            return
        try:
            link.send(self._links.filled(effect.message, effect.name))
        except LocalProtocolError as error:
            if isinstance(effect.message, m.Prepare | m.Assign | m.Save):
                self._handle(Undeliverable(job=effect.message.job, reason=error.message))
            raise
        if link.queued_bytes() > MAX_QUEUED_CONTROL_BYTES:
            log.warning("worker_too_slow", worker=effect.name, queued_bytes=link.queued_bytes())
            link.abort()

    def _on_incident(self, incident: Incident) -> None:
        write = log.info if incident.kind in QUIET_INCIDENTS else log.warning
        write(incident.kind, **incident_fields(incident))
        self._thread.later(self._store.add_incident, incident)
        self._performed(incident)


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
