"""The coordinator as a process: membership core, store and server wired together.

Connections come in, messages become events of the core, and what the core answers is done by
`dtd.coordinator.effects`.  No gradient and no parameter passes here.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from dtd import __version__
from dtd.config import CoordinatorConfig
from dtd.coordinator.effects import Effects
from dtd.coordinator.requests import CTL_REQUESTS, RequestDesk
from dtd.coordinator.store import Store
from dtd.coordinator.store_thread import StoreThread
from dtd.coordinator.worker_links import WorkerLinks
from dtd.core.membership import Membership
from dtd.core.membership_events import Effect, Event, FromWorker, Submitted, Ticked, WorkerLost
from dtd.errors import DtdError
from dtd.net.driver import Driver
from dtd.net.link import Link
from dtd.net.server import Server
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES, PROTOCOL_VERSION, Hold

log = structlog.get_logger()

T = TypeVar("T")


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
        self._store_thread = StoreThread()
        self._links = WorkerLinks()
        self._desk = RequestDesk(self, last_job=store.last_ended())
        self._effects = Effects(
            links=self._links,
            store=store,
            thread=self._store_thread,
            desk=self._desk,
            job_numbers=self.job_numbers,
        )
        self._driver: Driver[Event, Effect] = Driver(self.membership, self._effects.put, Ticked)
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
        await self._effects.run()

    async def stop(self) -> None:
        """Say goodbye to everyone and close the store."""
        self._driver.stop()
        self._server.close(m.Goodbye(reason="the coordinator stops"))
        await self._store_thread.close(self.store.close)
        log.info("coordinator_stopped")

    # --- operators ---------------------------------------------------------------------------

    async def in_store(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking method of the store in its thread, in order."""
        return await self._store_thread.run(function, *arguments)

    def handle(self, event: Event) -> None:
        """Hand an operator's event to the core.

        Raises:
            RequestRefused: the core says no.
        """
        self._driver.handle(event)

    async def settled(self) -> None:
        """Return when every effect so far is done: what was decided is written down."""
        await self._effects.settled()

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

    def connected(self) -> frozenset[str]:
        """Names of the workers whose control connection stands."""
        return self._links.names()

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
        elif isinstance(message, m.Register):
            self._on_register(link, message)
        else:
            self._on_report(self._links.speaker(link), message, payload)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """A worker or an operator is gone."""
        self._desk.forget(link)
        known = self._links.forget(link)
        if known is None:
            return
        name, incarnation = known
        reason = str(error) if error is not None else "it said goodbye"
        self._driver.handle(WorkerLost(name=name, incarnation=incarnation, reason=reason))

    def _on_register(self, link: Link, message: m.Register) -> None:
        host = message.data_host or link.peer_host()
        self._links.register(link, message.name, message.incarnation)
        registered = dataclasses.replace(message, data_host=host)
        self._driver.handle(FromWorker(name=message.name, message=registered))

    def _on_report(self, name: str, message: m.Message, payload: memoryview) -> None:
        if isinstance(message, m.JobOutput):
            lines = bytes(payload).decode("utf-8", "replace").split("\n")
            self._store_thread.later(self.store.add_lines, message.job, message.rank, name, lines)
            return
        if isinstance(message, m.CheckpointSaved):
            self._store_thread.later(self.store.save_checkpoint, name, message)
        self._driver.handle(FromWorker(name=name, message=message))
