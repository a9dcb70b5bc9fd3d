"""The coordinator as a process: membership core, store and server wired together.

Connections come in, messages become events of the core, and what the core answers is done by
`dtd.coordinator.effects`.  No gradient and no parameter passes here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from dtd import __version__
from dtd.config import CoordinatorConfig
from dtd.coordinator.access_desk import AccessDesk
from dtd.coordinator.control_port import ControlPort
from dtd.coordinator.data_secrets import DataSecrets
from dtd.coordinator.deletions import Deletions
from dtd.coordinator.effects import Effects
from dtd.coordinator.examiner import Examiner
from dtd.coordinator.figures import Figures
from dtd.coordinator.join_desk import JoinDesk
from dtd.coordinator.packages import PACKAGES, WEIGHTS, PackageCounter
from dtd.coordinator.requests import CTL_REQUESTS, RequestDesk
from dtd.coordinator.store import Store
from dtd.coordinator.store_thread import StoreThread
from dtd.coordinator.tensorboard import Curves, point_of
from dtd.coordinator.trouble_desk import TroubleDesk
from dtd.coordinator.worker_links import WorkerLinks
from dtd.core import names
from dtd.core.books import Books, Here
from dtd.core.membership import Membership
from dtd.core.membership_events import (
    Effect,
    Event,
    FromWorker,
    Submitted,
    Ticked,
    WorkerLost,
    WorkerState,
)
from dtd.core.status import status_of
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.metrics.coordinator import CoordinatorMetrics
from dtd.net.driver import Driver
from dtd.net.link import Link
from dtd.packages.archives import WEIGHTS as WEIGHTS_KIND
from dtd.packages.archives import Archives
from dtd.security.authority import DIRECTORY, open_data_key
from dtd.troubles import Trouble, name_taken
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES, Hold
from dtd.wire.greeting import welcome

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
            here=_here(store),
        )
        self.job_numbers: dict[str, int] = {}
        self._next_number = store.next_job_number()
        self._store_thread = StoreThread()
        self._links = WorkerLinks()
        self._secrets = DataSecrets(
            open_data_key(config.state_dir / DIRECTORY), self._links.incarnation, time.time
        )
        self._desk = RequestDesk(self, last_job=store.last_ended())
        self.figures = Figures()
        self.examiner = Examiner(self.membership, self._links, self._secrets, config.state_dir)
        # Hashing gigabytes must not hold up what generations wait for in the store's thread.
        self._weights_thread = StoreThread()
        self.packages = PackageCounter(
            Archives(config.state_dir / PACKAGES),
            in_use=store.packages_in_use,
            store_thread=self._store_thread,
            thread=self._store_thread,
        )
        self.weights = PackageCounter(
            Archives(config.state_dir / WEIGHTS, WEIGHTS_KIND),
            in_use=store.weights_in_use,
            store_thread=self._store_thread,
            thread=self._weights_thread,
        )
        self._effects = Effects(
            links=self._links,
            store=store,
            thread=self._store_thread,
            secrets=self._secrets,
            desk=self._desk,
            job_numbers=self.job_numbers,
            saved=self.handle,
        )
        self.metrics = CoordinatorMetrics(config.metrics)
        self.deletions = Deletions(
            self, self._links, self._store_thread, config.state_dir / "tensorboard"
        )
        self._curves = Curves(config.state_dir / "tensorboard", self._store_thread.later)
        self._driver: Driver[Event, Effect] = Driver(self.membership, self._put, Ticked)
        self.troubles = TroubleDesk(
            self.membership.books, time.monotonic, self._store_thread.complaint
        )
        self.port = ControlPort(config, self._new_link, time.monotonic, self.troubles.turned_away)
        self._join_desk = JoinDesk(self.port, self.in_store)
        self.access = AccessDesk(
            self.port,
            in_store=self.in_store,
            handle=self.handle,
            workers_of=self._links.certified_by,
        )

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and take up the jobs that had not ended."""
        for number, job in self.store.unfinished_jobs():
            self.job_numbers[job.id] = number
            self._driver.handle(Submitted(job=job))
        await self.metrics.start()
        bound = await self.port.listen()
        if self.port.authority is not None:
            self.metrics.figures.certificate_expires_s = self.port.authority.server_expires_s()
        self.address = str(bound)
        address_file = self.config.state_dir / "address"
        temporary = address_file.with_suffix(".new")
        temporary.write_text(self.address)
        temporary.rename(address_file)
        log.info("coordinator_listening", host=bound.host, port=bound.port, dtd_version=__version__)

    async def run(self) -> None:
        """Perform effects until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._effects.run())
            tasks.create_task(self.metrics.keep(self._look))

    async def stop(self) -> None:
        """Say goodbye to everyone and close the store."""
        self._driver.stop()
        self.port.close(m.Goodbye(reason="the coordinator stops"))
        await self.metrics.close()
        await self._weights_thread.close(lambda: None)
        await self._store_thread.close(self._close_files)
        log.info("coordinator_stopped")

    def _close_files(self) -> None:
        self._curves.close()
        self.store.close()

    def _put(self, effect: Effect) -> None:
        self.metrics.figures.decided(effect)
        self.troubles.decided(effect)
        self._effects.put(effect)

    def _look(self) -> tuple[Books, dict[str, Any]]:
        """What the metrics show."""
        self.metrics.figures.store_errors = self._store_thread.failures
        books = self.membership.books
        uptime_s = time.monotonic() - self.started_s
        status = status_of(
            books,
            explain="",
            address=self.address,
            uptime_s=uptime_s,
            version=__version__,
            now=self.now,
        )
        return books, status

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

    @property
    def has_authority(self) -> bool:
        """Whether the workers have credentials of this cluster."""
        return self.port.authority is not None

    def ticket(self, worker: str, scope: str) -> tuple[int, bytes]:
        """Until when, and with which key, the worker's data port opens for `scope`."""
        return self._secrets.ticket(worker, scope)

    def counter(self, message: m.PutPackage | m.GetPackage) -> PackageCounter:
        """Who keeps files of the kind that the message is about."""
        return self.weights if message.kind == WEIGHTS else self.packages

    def connected(self) -> frozenset[str]:
        """Names of the workers whose control connection stands."""
        return self._links.names()

    # --- connections -------------------------------------------------------------------------

    def _new_link(self) -> Link:
        accepts = frozenset({m.Role.WORKER, m.Role.CTL, m.Role.JOIN})
        return Link(self, Connection(opened=False, accepts=accepts))

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """Everyone who may open such a connection is welcome."""
        self.port.check(link, message)
        link.welcome(welcome("coordinator", max_payload_bytes=DEFAULT_MAX_PAYLOAD_BYTES))

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Payloads here are small."""
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """A worker reports, an operator asks, or somebody wants to join."""
        if isinstance(message, CTL_REQUESTS):
            self.port.check(link, message)
            self._desk.ask(link, message, payload)
        elif isinstance(message, m.Register):
            self.port.check(link, message)
            self._on_register(link, message)
        elif isinstance(message, m.GetAuthority | m.Enrol):
            self._join_desk.ask(link, message)
        else:
            self._on_report(link, self._links.speaker(link), message, payload)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """A worker or an operator is gone."""
        self._desk.forget(link)
        self._join_desk.forget(link)
        known = self._links.forget(link)
        if known is None:
            self.troubles.closed(link.peer_host(), error)
            return
        name, incarnation = known
        self.examiner.forget(name)
        reason = str(error) if error is not None else "it said goodbye"
        self._driver.handle(WorkerLost(name=name, incarnation=incarnation, reason=reason))

    def _on_register(self, link: Link, message: m.Register) -> None:
        host = message.data_host or link.peer_host()
        clash = self._links.clash(message) or self._name_taken(message)
        if clash is not None:
            self.troubles.name_taken(clash)
            raise ProtocolError(ErrorCode.REFUSED, clash.message, remedy=clash.remedy)
        self._links.register(link, message)
        self.troubles.registered(link.peer_host(), message.name)
        self.deletions.registered(message.name)
        known = self.membership.books.workers.get(message.name)
        released = known is not None and known.state is WorkerState.RELEASED
        self.metrics.figures.registered(message, released=released)
        registered = dataclasses.replace(message, data_host=host)
        self._driver.handle(FromWorker(name=message.name, message=registered))

    def _name_taken(self, message: m.Register) -> Trouble | None:
        """Whether a worker with another state directory lives under this name."""
        holder = names.holder(self.membership.books, message, self.now)
        if holder is None:
            return None
        place = f"{holder.host} (pid {holder.pid})" if holder.pid else "a host that is away"
        later = f"{message.host} (pid {message.pid})"
        return name_taken(message.name, place, later)

    def _on_report(self, link: Link, name: str, message: m.Message, payload: memoryview) -> None:
        if isinstance(message, m.GetPackage):
            self.counter(message).ask(link, message)
            return
        if isinstance(message, m.JobOutput):
            lines = bytes(payload).decode("utf-8", "replace").split("\n")
            self._store_thread.later(self.store.add_lines, message.job, message.rank, name, lines)
            return
        if isinstance(message, m.CheckpointDropped):
            self.deletions.dropped(name, message)
            return
        if isinstance(message, m.Measured):
            self.examiner.measured(name, message)
            return
        if isinstance(message, m.Progress):
            self.figures.progress(message)
        if isinstance(message, m.CheckpointSaved):
            self._store_thread.later(self.store.save_checkpoint, name, message)
            self.troubles.saved(name)
        self.metrics.figures.reported(message, unix_s=time.time())
        if isinstance(message, m.Progress | m.Evaluated) and message.job in self.job_numbers:
            self._curves.add(point_of(message, time.time()))
        self._driver.handle(FromWorker(name=name, message=message))


def _here(store: Store) -> Here:
    store_id, epoch = store.identity()
    return Here(version=__version__, host=socket.gethostname(), store_id=store_id, epoch=epoch)
