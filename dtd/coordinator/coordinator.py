"""The coordinator with all its services, as request handlers see it."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable

from dtd.cluster.events import Effect, JobEnded
from dtd.config import CoordinatorConfig
from dtd.coordinator.connections.report_quotas import ReportQuotas
from dtd.coordinator.core import Core
from dtd.coordinator.handlers.by_hand import JobsByHand
from dtd.coordinator.handlers.credentials import Joins, Renewals
from dtd.coordinator.handlers.jobs import Deletions
from dtd.coordinator.handlers.measurements import MeasurementBroker, Profiles
from dtd.coordinator.services.models import ModelRegistry
from dtd.coordinator.services.sweeps import Sweeps
from dtd.coordinator.services.web_page import WebPage
from dtd.coordinator.store.database import StoreThread, Turn
from dtd.coordinator.store.store import Store
from dtd.net.link import Link
from dtd.observe.metrics.coordinator import CoordinatorMetrics
from dtd.observe.metrics.endpoint import members_only
from dtd.observe.recorder import MetricsRecorder
from dtd.observe.sinks.trackers import Trackers


class Coordinator(Core):
    """State, decisions and services; belongs to the running event loop.

    Attributes:
        web: the web page; set by what answers its requests.
    """

    web: WebPage

    def __init__(
        self, config: CoordinatorConfig, store: Store, *, new_link: Callable[[], Link]
    ) -> None:
        super().__init__(config, store, new_link=new_link)
        self.history_thread = StoreThread(self.store_failed)
        self.history = MetricsRecorder(
            config.state_dir,
            config.metrics_store_mib * 1024 * 1024,
            self.incident,
            run=self.history_thread.run,
            later=self.history_thread.later,
        )
        self.complaints.append(self.history.complaint)
        only_members = config.metrics_for == "members"
        self.metrics = CoordinatorMetrics(
            config.metrics, self._metrics_context if only_members else None
        )
        self.trackers = Trackers(
            config, functools.partial(self.store_thread.later, turn=Turn.PATIENT), self.incident
        )
        self.reports = ReportQuotas(
            config.output_lines_per_s, store, self.store_thread, self.incident
        )
        self.models = ModelRegistry(self)
        self.sweeps = Sweeps(self, self.models)
        self.deletions = Deletions(self, self.models, self.history)
        self.broker = MeasurementBroker(self)
        self.profiles = Profiles(self, self.broker)
        self.renewals = Renewals(self)
        self.joins = Joins(self)
        self.by_hand = JobsByHand(self)

    def decided(self, effect: Effect) -> None:
        super().decided(effect)
        self.metrics.decided(effect)
        if isinstance(effect, JobEnded):
            self.trackers.ended(effect.job)
            self.sweeps.job_ended(effect.job)

    def _metrics_context(self) -> ssl.SSLContext:
        """Return the TLS of the metrics endpoint, for members of the cluster only; in a thread."""
        authority = self.port.authority
        return members_only(authority.server_context() if authority is not None else None)
