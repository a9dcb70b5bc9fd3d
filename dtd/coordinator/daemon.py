"""The coordinator as a process: membership core, store and server wired together.

Connections come in, messages become events of the core, effects go out in order: what must be
durable is written before what follows it is sent.  No gradient and no parameter passes here.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog

from dtd import __version__
from dtd.config import CoordinatorConfig
from dtd.coordinator.requests import CTL_REQUESTS, RequestDesk
from dtd.coordinator.store import Store, job_body
from dtd.core.membership import Membership
from dtd.core.membership_events import (
    Disconnect,
    Effect,
    Event,
    FromWorker,
    Incident,
    JobEnded,
    SaveJob,
    Send,
    Submitted,
    Ticked,
    WorkerLost,
)
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.driver import Driver
from dtd.net.link import MAX_QUEUED_CONTROL_BYTES, Link
from dtd.net.server import Server
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES, PROTOCOL_VERSION, Hold

log = structlog.get_logger()

T = TypeVar("T")

QUIET_INCIDENTS = frozenset({"worker_registered", "generation_forming", "job_started"})


class Coordinator:
    """One coordinator on the running event loop.

    Args:
        config: where to listen and how patient to be.
        store: the open state directory.
    """

    def __init__(self, config: CoordinatorConfig, store: Store) -> None:
        self.config = config
        self.store = store
        self.address = ""
        self.started_s = time.monotonic()
        self.membership = Membership(
            heartbeat_interval_s=config.heartbeat_interval_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            last_generation=store.last_generation(),
        )
        self.job_numbers: dict[str, int] = {}
        self._next_number = store.next_job_number()
        self._driver: Driver[Event, Effect] = Driver(self.membership, self._queue_effect, Ticked)
        self._effects: asyncio.Queue[tuple[Effect | asyncio.Future[None], Any]] = asyncio.Queue()
        self._store_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._links: dict[str, tuple[Link, int]] = {}
        self._names: dict[Link, tuple[str, int]] = {}
        self._desk = RequestDesk(self)
        self._server = Server(self._new_link)

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and take up the jobs that had not ended."""
        for number, job in self.store.unfinished_jobs():
            self.job_numbers[job.id] = number
            self._driver.handle(Submitted(job=job))
        bound = await self._server.listen(self.config.listen)
        self.address = str(bound)
        address_file = self.config.state_dir / "address"
        temporary = address_file.with_suffix(".new")
        temporary.write_text(self.address)
        temporary.rename(address_file)
        log.info("coordinator_listening", host=bound.host, port=bound.port, dtd_version=__version__)

    async def run(self) -> None:
        """Perform effects until cancelled."""
        while True:
            await self._perform(*await self._effects.get())

    async def stop(self) -> None:
        """Say goodbye to everyone and close the store."""
        self._driver.stop()
        self._server.close(m.Goodbye(reason="the coordinator stops"))
        await self.in_store(self.store.close)
        self._store_thread.shutdown()
        log.info("coordinator_stopped")

    async def in_store(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking method of the store in its thread, in order."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._store_thread, function, *arguments)

    # --- operators ---------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Hand an operator's event to the core.

        Raises:
            RequestRefused: the core says no.
        """
        self._driver.handle(event)

    async def settled(self) -> None:
        """Return when every effect so far is done: what was decided is written down."""
        done = asyncio.get_running_loop().create_future()
        self._effects.put_nowait((done, None))
        await done

    def new_job_id(self, name: str) -> str:
        """A fresh id for a job of this name."""
        number, self._next_number = self._next_number, self._next_number + 1
        job_id = f"{name}-{number}"
        self.job_numbers[job_id] = number
        return job_id

    @property
    def now(self) -> float:
        """The clock that the core sees."""
        return self._driver.now

    # --- connections -------------------------------------------------------------------------

    def _new_link(self) -> Link:
        accepts = frozenset({m.Role.WORKER, m.Role.CTL})
        return Link(self, Connection(opened=False, accepts=accepts))

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """Everyone who speaks our protocol is welcome."""
        link.welcome(
            m.Welcome(
                protocol=PROTOCOL_VERSION,
                version=__version__,
                name="coordinator",
                max_payload_bytes=DEFAULT_MAX_PAYLOAD_BYTES,
            )
        )

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Payloads here are small."""
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """A worker reports, or an operator asks."""
        if isinstance(message, CTL_REQUESTS):
            self._desk.ask(link, message)
            return
        if isinstance(message, m.Register):
            self._on_register(link, message)
        known = self._names.get(link)
        if known is None:
            raise ProtocolError(ErrorCode.WRONG_STATE, "REGISTER must come first")
        name = known[0]
        if isinstance(message, m.JobOutput):
            self._on_output(name, message, payload)
            return
        if isinstance(message, m.CheckpointSaved):
            self._later(self.store.save_checkpoint, name, message)
        if not isinstance(message, m.Register):
            self._driver.handle(FromWorker(name=name, message=message))

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """A worker or an operator is gone."""
        self._desk.forget(link)
        known = self._names.pop(link, None)
        if known is None:
            return
        name, incarnation = known
        if self._links.get(name, (None, 0))[0] is link:
            del self._links[name]
        reason = str(error) if error is not None else "it said goodbye"
        self._driver.handle(WorkerLost(name=name, incarnation=incarnation, reason=reason))

    def _on_register(self, link: Link, message: m.Register) -> None:
        registered = m.Register(
            name=message.name,
            incarnation=message.incarnation,
            pid=message.pid,
            host=message.host,
            device=message.device,
            data_host=message.data_host or link.peer_host(),
            data_port=message.data_port,
            version=message.version,
            job=message.job,
            generation=message.generation,
            roster_id=message.roster_id,
            step=message.step,
        )
        old = self._links.get(message.name)
        if old is not None:
            self._names.pop(old[0], None)
            old[0].fail(
                ProtocolError(
                    ErrorCode.REFUSED,
                    f"another worker registered as {message.name}",
                    remedy="give every worker a name of its own with --name",
                )
            )
        self._links[message.name] = (link, message.incarnation)
        self._names[link] = (message.name, message.incarnation)
        self._driver.handle(FromWorker(name=message.name, message=registered))

    def _on_output(self, name: str, message: m.JobOutput, payload: memoryview) -> None:
        lines = bytes(payload).decode("utf-8", "replace").split("\n")
        self._later(self.store.add_lines, message.job, message.rank, name, lines)

    # --- effects -----------------------------------------------------------------------------

    def _queue_effect(self, effect: Effect) -> None:
        """Keep the order of effects, with what they mean now.

        A job is written as it is, not as it will be, and a message goes to the connection that
        the worker has, not to one that it may have after the store has written.
        """
        if isinstance(effect, SaveJob):
            self._effects.put_nowait((effect, job_body(effect.job)))
        elif isinstance(effect, Send | Disconnect):
            self._effects.put_nowait((effect, self._links.get(effect.name, (None, 0))[0]))
        else:
            self._effects.put_nowait((effect, None))

    async def _perform(self, effect: Effect | asyncio.Future[None], about: Any) -> None:
        if isinstance(effect, Send):
            self._send(effect, about)
        elif isinstance(effect, asyncio.Future) and not effect.done():  # whoever asked may be gone
            effect.set_result(None)
        elif isinstance(effect, SaveJob):
            await self._save_job(about)
        elif isinstance(effect, Incident):
            self._on_incident(effect)
        elif isinstance(effect, Disconnect) and about is not None:
            about.fail(ProtocolError(ErrorCode.REFUSED, effect.reason))
        elif isinstance(effect, JobEnded):
            self._desk.job_ended(effect.job)

    async def _save_job(self, body: dict[str, Any]) -> None:
        """A full disk must not end the training that the job is about."""
        try:
            await self.in_store(self.store.save_job, self.job_numbers[body["id"]], body)
        except sqlite3.Error as error:
            log.error("store_failed", job=body["id"], error=str(error))

    def _send(self, effect: Send, link: Link | None) -> None:
        if link is None:
            return
        link.send(effect.message)
        if link.queued_bytes() > MAX_QUEUED_CONTROL_BYTES:
            log.warning("worker_too_slow", worker=effect.name, queued_bytes=link.queued_bytes())
            link.abort()

    def _on_incident(self, incident: Incident) -> None:
        write = log.info if incident.kind in QUIET_INCIDENTS else log.warning
        if incident.kind in ("generation_running", "job_done"):
            write = log.info
        write(
            incident.kind,
            message=incident.message,
            job=incident.job,
            worker=incident.worker,
            generation=incident.generation,
            step=incident.step,
        )
        self._later(self.store.add_incident, incident)
        self._desk.something_happened()

    def _later(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the store do something without waiting for it; failures are logged."""
        future = self._store_thread.submit(function, *arguments)
        future.add_done_callback(_log_failure)

    def connected(self) -> frozenset[str]:
        """Names of the workers whose control connection stands."""
        return frozenset(self._links)


def _log_failure(future: Any) -> None:
    error = future.exception()
    if error is not None:
        log.error("store_failed", error=str(error))
