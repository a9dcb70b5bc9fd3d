"""The coordinator as a process: membership core, store and server wired together.

Messages from connections become events of the core, and `dtd.coordinator.effects` performs the
effects that the core returns.  No gradient and no parameter passes here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import structlog

from dtd import __version__
from dtd.address import SocketPath
from dtd.cluster import allocation, reports
from dtd.cluster.events import (
    Effect,
    Event,
    FromWorker,
    Incident,
    JobEnded,
    Submitted,
    Ticked,
    WorkerLost,
)
from dtd.cluster.pools import Pools
from dtd.cluster.state import ClusterState
from dtd.cluster.state_records import CoordinatorIdentity
from dtd.cluster.status import Beside, status_of
from dtd.config import CoordinatorConfig
from dtd.coordinator.audit_file import AuditFile
from dtd.coordinator.audit_log import AuditLog, Caller
from dtd.coordinator.containment import Containment, GuardedCore
from dtd.coordinator.control_port import ControlPort
from dtd.coordinator.data_secrets import DataSecrets
from dtd.coordinator.diagnostics import DiagnosticsCollector
from dtd.coordinator.effects import Effects
from dtd.coordinator.handlers.access import AccessHandler
from dtd.coordinator.handlers.deletions import Deletions
from dtd.coordinator.handlers.join import JoinHandler
from dtd.coordinator.handlers.measurements import MeasurementBroker
from dtd.coordinator.handlers.packages import PACKAGES, WEIGHTS, PackageCounter
from dtd.coordinator.handlers.parts import PartDirectory
from dtd.coordinator.handlers.registration import RegistrationHandler
from dtd.coordinator.handlers.renewal import RenewalHandler
from dtd.coordinator.handlers.reports import ReportHandler
from dtd.coordinator.handlers.requests import CTL_REQUESTS, RequestHandler
from dtd.coordinator.models import ModelRegistry
from dtd.coordinator.process_limits import allowed_files
from dtd.coordinator.store.store import Store
from dtd.coordinator.store.thread import StoreThread, Turn
from dtd.coordinator.sweeps.controller import Sweeps
from dtd.coordinator.throttles import Pace
from dtd.coordinator.web_desk import WebDesk
from dtd.coordinator.worker_links import WorkerLinks
from dtd.errors import DtdError, ProtocolError
from dtd.net.driver import Driver
from dtd.net.limits import Connections, Quotas, connections_for
from dtd.net.link import Link
from dtd.observe.metrics.coordinator import CoordinatorMetrics
from dtd.observe.metrics.endpoint import members_only
from dtd.observe.metrics.worker import next_in_ring
from dtd.observe.recorder import MetricsRecorder
from dtd.observe.sinks.trackers import Trackers
from dtd.packages.archives import WEIGHTS as WEIGHTS_KIND
from dtd.packages.archives import Archives
from dtd.security.authority import DIRECTORY, open_data_key
from dtd.wire import messages as m
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES, Hold
from dtd.wire.greeting import welcome

log = structlog.get_logger()

FOLD_EVERY_S: Final = 5.0
"""So much of the store is lost, at most, with a log that is lost."""

T = TypeVar("T")


class Coordinator:
    """One coordinator on the running event loop.

    Args:
        config: addresses and time-outs.
        store: the open state directory.
    """

    def __init__(self, config: CoordinatorConfig, store: Store) -> None:
        self.config = config
        self.store = store
        self.address = ""
        self.started_s = time.monotonic()
        self.membership = Pools(
            heartbeat_interval_s=config.heartbeat_interval_s,
            heartbeat_timeout_s=config.heartbeat_timeout_s,
            last_generation=store.last_generation(),
            identity=_identity(store),
        )
        self.job_numbers: dict[str, int] = {}
        self._next_number = store.next_job_number()
        self._loop = asyncio.get_running_loop()
        self.containment = Containment(time.monotonic, self)
        self._store_thread = StoreThread(self._store_failed)
        self.audit = AuditLog(AuditFile(config.state_dir), self._store_thread)
        self._links = WorkerLinks()
        self._secrets = DataSecrets(
            open_data_key(config.state_dir / DIRECTORY),
            self._links.incarnation,
            lambda name: self._links.clock_s(name, self.now),
        )
        self._desk = RequestHandler(self, last_job=store.last_ended())
        self.sweeps = Sweeps(self, self._desk.submit)
        self.measurement_broker = MeasurementBroker(
            self.membership, self._links, self._secrets, config.state_dir
        )
        # Hashing gigabytes must not hold up what generations wait for in the store's thread.
        self._weights_thread = StoreThread(self._store_failed)
        self._parts = PartDirectory(self)
        self.packages = PackageCounter(
            Archives(config.state_dir / PACKAGES),
            in_use=store.packages_in_use,
            store_thread=self._store_thread,
            thread=self._store_thread,
            contain=self.containment.around,
        )
        self.weights = PackageCounter(
            Archives(config.state_dir / WEIGHTS, WEIGHTS_KIND),
            in_use=store.weights_in_use,
            store_thread=self._store_thread,
            thread=self._weights_thread,
            contain=self.containment.around,
        )
        self._effects = Effects(
            links=self._links,
            store=store,
            thread=self._store_thread,
            secrets=self._secrets,
            desk=self._desk,
            job_numbers=self.job_numbers,
            saved=self.handle,
            undeliverable=self.handle,
            containment=self.containment,
        )
        only_members = config.metrics_for == "members"
        self.metrics = CoordinatorMetrics(
            config.metrics, self._metrics_context if only_members else None
        )
        self.deletions = Deletions(self, self._links, self._store_thread, config.state_dir)
        self.models = ModelRegistry(self, self._links, self._store_thread)
        self._trackers = Trackers(
            config, functools.partial(self._store_thread.later, turn=Turn.PATIENT), self.incident
        )
        self._history_thread = StoreThread(self._store_failed)
        self.history = MetricsRecorder(
            config.state_dir,
            config.metrics_store_mib * 1024 * 1024,
            self.incident,
            run=self._history_thread.run,
            later=self._history_thread.later,
        )
        self._pace = Pace()
        self._reports = ReportHandler(
            Quotas(config.output_lines_per_s), store, self._store_thread, self
        )
        self._core = GuardedCore(
            self.membership,
            self.containment,
            perform=self._put,
            disconnect_all=self._links.fail_all,
        )
        self._driver: Driver[Event, Effect] = Driver(self._core, self._put, Ticked)
        self.diagnostics = DiagnosticsCollector(
            self.membership.clusters,
            time.monotonic,
            lambda: self._store_thread.complaint() or self.history.complaint(),
        )
        self.port = ControlPort(
            config,
            self._new_link,
            time.monotonic,
            self.diagnostics.turned_away,
            Connections(in_all=connections_for(allowed_files())),
        )
        first = functools.partial(self._store_thread.run, turn=Turn.URGENT)
        last = functools.partial(self._store_thread.run, turn=Turn.PATIENT)
        contain = self.containment.around
        self.renewals = RenewalHandler(
            self.port, self.in_store, self._own_ends, self._links.all, contain
        )
        self.access = AccessHandler(
            self.port,
            in_store=first,
            handle=self.handle,
            workers_of=self._links.certified_by,
        )
        self._join_desk = JoinHandler(self.port, last, self.access.evict, self.audit, contain)
        self._registrations = RegistrationHandler(
            self, self.port, self._links, self._secrets, self.metrics
        )
        self.web = WebDesk(config, self, self.port, self._desk)

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and take up the jobs that had not ended."""
        self._loop.set_exception_handler(self.containment.stray)
        unfinished = self.store.unfinished_jobs()
        self.job_numbers |= {job.id: number for number, job in unfinished}
        for job in allocation.in_order([job for _, job in unfinished]):
            with self.containment.around(f"taking up job {job.id}"):
                self._driver.handle(Submitted(job=job))
        self.models.start()
        await self.sweeps.take_up()
        bound = await self.port.listen()
        await self.metrics.start()
        if self.port.authority is not None:
            self.metrics.figures.certificate_expires_s = self.port.authority.server_expires_s()
        await self.web.start()
        self.address = str(bound or SocketPath(str(self.config.socket)))
        address_file = self.config.state_dir / "address"
        temporary = address_file.with_suffix(".new")
        temporary.write_text(self.address)
        temporary.rename(address_file)
        log.info(
            "coordinator_listening",
            address=self.address,
            socket=str(self.config.socket),
            dtd_version=__version__,
        )

    def _metrics_context(self) -> ssl.SSLContext:
        """Return the TLS of the metrics endpoint, for members of the cluster only; in a thread."""
        authority = self.port.authority
        return members_only(authority.server_context() if authority is not None else None)

    async def run(self) -> None:
        """Perform effects until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            forever = self.containment.forever
            tasks.create_task(forever("performing effects", self._effects.run))
            tasks.create_task(forever("showing figures", lambda: self.metrics.keep(self._look)))
            tasks.create_task(forever("renewing credentials", self.renewals.keep))
            tasks.create_task(forever("passing figures on", self._trackers.run))
            tasks.create_task(forever("folding the store's log", self._keep_folding))

    async def _keep_folding(self) -> None:
        """Fold the log now and then: a lost one costs all writes since."""
        while True:
            await asyncio.sleep(FOLD_EVERY_S)
            self._store_thread.later(self.store.fold, turn=Turn.PATIENT)

    async def stop(self) -> None:
        """Send GOODBYE on all connections and close the store."""
        self._driver.stop()
        self._reports.close()
        await self.web.close()
        self.sweeps.close()
        self.port.close(m.Goodbye(reason="the coordinator is stopping"))
        await self.metrics.close()
        await self._weights_thread.close(lambda: None)
        await self.history.close()
        await self._history_thread.close(lambda: None)
        await self._store_thread.close(self._close_files)
        log.info("coordinator_stopped")

    def _own_ends(self, unix_s: float) -> None:
        """Record when the coordinator's own certificate ends."""
        self.metrics.figures.certificate_expires_s = unix_s

    def _close_files(self) -> None:
        self._trackers.close()
        self.store.close()

    def _put(self, effect: Effect) -> None:
        with self.containment.around(f"deciding on {type(effect).__name__}"):
            self.metrics.figures.decided(effect)
            self.diagnostics.decided(effect)
            if isinstance(effect, JobEnded):
                self._trackers.ended(effect.job)
                self.sweeps.job_ended(effect.job)
            self._effects.put(effect)

    def incident(self, kind: str, message: str, *, worker: str = "", **details: Any) -> None:
        """Something that the core has no part in, for an operator to read."""
        self._put(Incident(kind=kind, message=message, worker=worker, details=details))

    def _store_failed(self, error: BaseException) -> None:
        """Report an error of a call that nothing waits for; in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.containment.failed, error, "a call to the store")

    def _look(self) -> tuple[list[ClusterState], dict[str, Any]]:
        """Return the clusters and the status that the metrics show."""
        self.metrics.figures.store_errors = self._store_thread.failures
        self.metrics.figures.reports_dropped = self._reports.dropped()
        clusters = self.membership.clusters()
        uptime_s = time.monotonic() - self.started_s
        status = status_of(
            clusters[0],
            explain="",
            address=self.address,
            uptime_s=uptime_s,
            version=__version__,
            now=self.now,
            beside=Beside(clusters=clusters[1:]),
        )
        return clusters, status

    # --- operators ---------------------------------------------------------------------------

    async def in_store(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking method of the store in its thread, in order."""
        return await self._store_thread.run(function, *arguments)

    async def after_lines(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a method that reads jobs' output, once all output so far is written."""
        return await self._store_thread.run(function, *arguments, turn=Turn.PATIENT)

    def handle(self, event: Event) -> None:
        """Hand an operator's event to the core.

        Raises:
            RequestRefused: the core refuses.
        """
        self._driver.handle(event)

    async def settled(self) -> None:
        """Return when every effect so far is done: all decisions are written down."""
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
        """Return the expiry and the key with which the worker's data port opens for `scope`."""
        return self._secrets.ticket(worker, scope)

    def counter(self, message: m.PutPackage | m.GetPackage) -> PackageCounter:
        """Return the counter for files of the message's kind."""
        return self.weights if message.kind == WEIGHTS else self.packages

    def connected(self) -> frozenset[str]:
        """Names of the workers that are connected."""
        return self._links.names()

    # --- connections -------------------------------------------------------------------------

    def _new_link(self) -> Link:
        accepts = frozenset({m.Role.WORKER, m.Role.CTL, m.Role.JOIN})
        return Link(self, accepts=accepts)

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """Every authenticated connection is accepted."""
        with self.containment.around("HELLO", link):
            self.port.check(link, message)
            link.welcome(welcome("coordinator", max_payload_bytes=DEFAULT_MAX_PAYLOAD_BYTES))

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Payloads here are small; a worker that talks too fast is heard later."""
        return self._pace.place(link, message, payload_bytes)

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """A message from a worker, from an operator, or from a caller that wants to join."""
        with self.containment.around(
            m.message_name(type(message)), link, worker=self._links.name_of(link)
        ):
            self._on_message(link, message, payload)

    def _on_message(self, link: Link, message: m.Message, payload: memoryview) -> None:
        if isinstance(message, CTL_REQUESTS):
            self.check_request(link, message)
            self._desk.ask(link, message, payload)
        elif isinstance(message, m.Register):
            self.port.check(link, message)
            self._registrations.take_in(link, message)
        elif isinstance(message, m.Renew):
            self.port.check(link, message)
            self.renewals.ask(link, message)
        elif isinstance(message, m.GetAuthority | m.Enrol):
            self._join_desk.ask(link, message)
        else:
            self._on_report(link, self._links.speaker(link), message, payload)

    def check_request(self, caller: Caller, message: m.Message) -> None:
        """Check that the caller may send this request; refusals are in the audit log.

        Raises:
            ProtocolError: REFUSED, it may not.
        """
        try:
            self.port.check(caller, message)
        except ProtocolError as error:
            self.audit.refused(caller, message, error.message)
            raise

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """A worker or an operator has disconnected."""
        with self.containment.around("the end of a connection"):
            self._on_closed(link, error)

    def _on_closed(self, link: Link, error: DtdError | None) -> None:
        self._desk.forget(link)
        self._join_desk.forget(link)
        self.renewals.forget(link)
        known = self._links.forget(link)
        if known is None:
            self.diagnostics.closed(link.peer_host(), error)
            return
        name, incarnation = known
        self.measurement_broker.forget(name)
        if name not in self._links.names():
            self.models.lost(name)
        reason = str(error) if error is not None else "the connection was closed normally"
        self._driver.handle(WorkerLost(name=name, incarnation=incarnation, reason=reason))

    def _on_report(self, link: Link, name: str, message: m.Message, payload: memoryview) -> None:
        reports.check_form(message)
        if isinstance(message, m.GetPackage):
            self.counter(message).ask(link, message)
            return
        if isinstance(message, m.GetParts):
            self._parts.ask(link, name, message)
            return
        if isinstance(message, m.ModelsHeld | m.ModelPinned):
            self.models.heard(name, message)
            return
        if not (self.membership.awaits(name, message) or self._reports.heeds(name, message)):
            return
        if isinstance(message, m.CheckpointDropped):
            self.deletions.dropped(name, message)
            return
        if isinstance(message, m.Measured):
            self.measurement_broker.measured(name, message)
            return
        if self.membership.hears(name, message):
            self._keep(name, message, payload)
        self._driver.handle(FromWorker(name=name, message=message))

    def _keep(self, name: str, message: m.Message, payload: memoryview) -> None:
        """Store a worker's accepted report, and add it to the figures."""
        if isinstance(message, m.JobOutput):
            self._reports.output(name, message, bytes(payload))
        if isinstance(message, m.CheckpointSaved):
            self._store_thread.later(self.store.save_checkpoint, name, message)
            self.diagnostics.saved(name)
        self.metrics.figures.reported(message, unix_s=time.time())
        self._remember(name, message)
        if isinstance(message, m.Progress | m.Evaluated) and message.job in self.job_numbers:
            self._trackers.reported(self.membership.cluster_of(name).job, message)

    def _remember(self, name: str, message: m.Message) -> None:
        """Keep the figures of the sender's job; reports of any other are not trusted here."""
        cluster = self.membership.cluster_of(name)
        job = cluster.job
        if job is None or getattr(message, "job", "") != job.id:
            return
        if isinstance(message, m.Progress):
            self.history.progress(name, job.identity, message)
        elif isinstance(message, m.Evaluated):
            self.history.evaluated(name, job.identity, message)
            self.sweeps.evaluated(message)
        elif isinstance(message, m.Heartbeat):
            to = next_in_ring(cluster.run.roster, name)
            self.history.heartbeat(name, job.identity, message, to)


def _identity(store: Store) -> CoordinatorIdentity:
    store_id, epoch = store.identity()
    return CoordinatorIdentity(
        version=__version__, host=socket.gethostname(), store_id=store_id, epoch=epoch
    )
