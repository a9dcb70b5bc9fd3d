"""The interface of the coordinator that the request handlers need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dtd.cluster.events import Event
from dtd.cluster.pools import Pools
from dtd.coordinator.audit_log import AuditLog
from dtd.coordinator.containment import Containment
from dtd.coordinator.diagnostics import DiagnosticsCollector
from dtd.coordinator.handlers.access import AccessHandler
from dtd.coordinator.handlers.measurements import MeasurementBroker
from dtd.coordinator.handlers.packages import PackageCounter
from dtd.coordinator.handlers.renewal import RenewalHandler
from dtd.coordinator.store.store import Store
from dtd.coordinator.sweeps.controller import Sweeps
from dtd.errors import RequestRefused
from dtd.observe.recorder import MetricsRecorder
from dtd.rules import did_you_mean
from dtd.wire import messages as m

if TYPE_CHECKING:  # it asks the coordinator for jobs itself
    from dtd.coordinator.handlers.deletions import Deletions
    from dtd.coordinator.models import ModelRegistry
    from dtd.coordinator.web_desk import WebDesk

T = TypeVar("T")


class CoordinatorApi(Protocol):
    """The daemon, as operators' requests see it."""

    address: str
    started_s: float
    store: Store
    packages: PackageCounter
    weights: PackageCounter
    membership: Pools
    measurement_broker: MeasurementBroker
    access: AccessHandler
    diagnostics: DiagnosticsCollector
    deletions: Deletions
    models: ModelRegistry
    history: MetricsRecorder
    audit: AuditLog
    renewals: RenewalHandler
    containment: Containment
    web: WebDesk
    sweeps: Sweeps

    @property
    def now(self) -> float:
        """The clock that the core sees."""
        ...

    @property
    def has_authority(self) -> bool:
        """Whether the workers have credentials of this cluster."""
        ...

    def handle(self, event: Event) -> None:
        """Hand an event to the core; raises RequestRefused."""
        ...

    def incident(self, kind: str, message: str, *, worker: str = "", **details: Any) -> None:
        """Report something that the core has no part in, for an operator to read."""
        ...

    async def settled(self) -> None:
        """Return when every effect so far is done."""
        ...

    async def in_store(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking method of the store."""
        ...

    async def after_lines(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a method that reads jobs' output."""
        ...

    def new_job_id(self, name: str) -> str:
        """A fresh id for a job of this name."""
        ...

    def counter(self, message: m.PutPackage | m.GetPackage) -> PackageCounter:
        """Return the counter for files of the message's kind."""
        ...

    def connected(self) -> frozenset[str]:
        """Names of the workers that are connected."""
        ...

    def ticket(self, worker: str, scope: str) -> tuple[int, bytes]:
        """Return the expiry and the key with which the worker's data port opens for `scope`."""
        ...


async def known_job(coordinator: CoordinatorApi, job_id: str) -> dict[str, Any]:
    """A job as it is written down.

    Raises:
        RequestRefused: there is none of this id.
    """
    found = await coordinator.in_store(coordinator.store.job, job_id)
    if found is None:
        known = [job["id"] for job in await coordinator.in_store(coordinator.store.jobs)]
        near = did_you_mean(job_id, known)
        raise RequestRefused(f"job {job_id!r} does not exist{near}", remedy="see `dtdctl jobs`")
    return found
