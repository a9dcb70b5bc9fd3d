"""The coordinator as a process: its life, and the connections of workers and operators.

Messages from connections go to request handlers or become events of the membership core, and
`dtd.coordinator.core` performs the effects that the core returns.  No gradient and no parameter
passes here.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from dtd import __version__, diagnostics
from dtd.address import SocketPath
from dtd.cluster.events import Submitted, WorkerLost
from dtd.cluster.several_jobs import pools
from dtd.cluster.state import ClusterState
from dtd.config import CoordinatorConfig
from dtd.coordinator.connections.message_rates import Pace
from dtd.coordinator.coordinator import Coordinator
from dtd.coordinator.handlers import requests
from dtd.coordinator.handlers.workers import on_report, register
from dtd.coordinator.services.web_page import WebPage
from dtd.coordinator.store.database import Turn
from dtd.coordinator.store.store import Store
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.link import Link
from dtd.wire import messages as m
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES, Hold
from dtd.wire.session import welcome

log = structlog.get_logger()

FOLD_EVERY_S: Final = 5.0
"""So much of the store is lost, at most, with a log that is lost."""


RECEIVERS: Final[Mapping[type[m.Message], Callable[[Coordinator, Link, Any, memoryview], None]]] = {
    **dict.fromkeys(requests.CTL_REQUESTS, requests.ask),
    m.Register: register,
    m.JoinJob: lambda coordinator, link, message, _: coordinator.by_hand.ask(link, message),
    m.Renew: lambda coordinator, link, message, _: coordinator.renewals.ask(link, message),
    m.GetAuthority: lambda coordinator, link, message, _: coordinator.joins.ask(link, message),
    m.Enrol: lambda coordinator, link, message, _: coordinator.joins.ask(link, message),
}
"""The receiver of each message; all others are workers' reports."""


class Daemon:
    """One coordinator on the running event loop."""

    def __init__(self, config: CoordinatorConfig, store: Store) -> None:
        accepts = frozenset({m.Role.WORKER, m.Role.CTL, m.Role.JOIN})
        self.coordinator = Coordinator(config, store, new_link=lambda: Link(self, accepts=accepts))
        self._contain = self.coordinator.containment.around
        self._pace = Pace()
        self.coordinator.web = WebPage(
            self.coordinator, functools.partial(requests.carry_out, self.coordinator)
        )

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and take up the jobs that had not ended."""
        coordinator, config = self.coordinator, self.coordinator.config
        asyncio.get_running_loop().set_exception_handler(coordinator.containment.stray)
        for job in pools.in_order([job for _, job in coordinator.store.unfinished_jobs()]):
            with self._contain(f"taking up job {job.id}"):
                coordinator.handle(Submitted(job=job))
        coordinator.models.start()
        await coordinator.sweeps.take_up()
        bound = await coordinator.port.listen()
        await asyncio.to_thread(coordinator.metrics.exposition.start)
        await coordinator.web.start()
        coordinator.address = str(bound or SocketPath(str(config.socket)))
        address_file = config.state_dir / "address"
        temporary = address_file.with_suffix(".new")
        temporary.write_text(coordinator.address)
        temporary.rename(address_file)
        log.info(
            "coordinator_listening",
            address=coordinator.address,
            socket=str(config.socket),
            dtd_version=__version__,
        )

    async def run(self) -> None:
        coordinator = self.coordinator
        forever = coordinator.containment.forever
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(forever("performing effects", coordinator.perform))
            tasks.create_task(
                forever("showing figures", lambda: coordinator.metrics.keep(self._look))
            )
            tasks.create_task(forever("renewing credentials", coordinator.renewals.keep))
            tasks.create_task(forever("passing figures on", coordinator.trackers.run))
            tasks.create_task(forever("folding the store's log", self._keep_folding))

    async def _keep_folding(self) -> None:
        """Fold the log now and then: a lost one costs all writes since."""
        while True:
            await asyncio.sleep(FOLD_EVERY_S)
            self.coordinator.store_thread.later(self.coordinator.store.fold, turn=Turn.PATIENT)

    async def stop(self) -> None:
        """Send GOODBYE on all connections and close the store."""
        coordinator = self.coordinator
        coordinator.stop()
        await coordinator.web.close()
        coordinator.port.close(m.Goodbye(reason="the coordinator is stopping"))
        await asyncio.to_thread(coordinator.metrics.exposition.close)
        await coordinator.weights_thread.close(lambda: None)
        await coordinator.history.close()
        await coordinator.history_thread.close(lambda: None)
        await coordinator.store_thread.close(self._close_files)
        log.info("coordinator_stopped")

    def _close_files(self) -> None:
        self.coordinator.trackers.close()
        self.coordinator.store.close()

    def _look(self) -> tuple[list[ClusterState], dict[str, Any]]:
        """Return the clusters and the status that the metrics show."""
        coordinator = self.coordinator
        figures = coordinator.metrics
        figures.store_errors = coordinator.store_thread.failures
        figures.reports_dropped = coordinator.reports.dropped
        figures.certificate_expires_s = coordinator.renewals.own_expires_s or None
        clusters = coordinator.membership.clusters()
        return clusters, coordinator.status(clusters, explain="")

    # --- connections (`dtd.net.link.LinkHandler`) ---------------------------------------------

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """Every authenticated connection is accepted."""
        with self._contain("HELLO", link):
            self.coordinator.port.check(link, message)
            link.welcome(welcome("coordinator", max_payload_bytes=DEFAULT_MAX_PAYLOAD_BYTES))

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Payloads here are small; a worker that talks too fast is heard later."""
        return self._pace.place(link, message, payload_bytes)

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        name = self.coordinator.links.name_of(link)
        with self._contain(m.message_name(type(message)), link, worker=name):
            receive = RECEIVERS.get(type(message), on_report)
            receive(self.coordinator, link, message, payload)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        with self._contain("the end of a connection"):
            self._on_closed(link, error)

    def _on_closed(self, link: Link, error: DtdError | None) -> None:
        coordinator = self.coordinator
        coordinator.answers.forget(link)
        known = coordinator.links.forget(link)
        if known is None:
            if isinstance(error, ProtocolError) and error.code is ErrorCode.BAD_VERSION:
                coordinator.note(diagnostics.protocol_differs(link.peer_host()))
            return
        name, incarnation = known
        coordinator.broker.forget(name)
        if name not in coordinator.links.names():
            coordinator.models.lost(name)
        reason = str(error) if error is not None else "the connection was closed normally"
        coordinator.handle(WorkerLost(name=name, incarnation=incarnation, reason=reason))
