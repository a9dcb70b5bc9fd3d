"""The cluster's figures, as samples: from the status object, heartbeats and counts.

Job and workers are read from the same status object that `dtdctl status` shows, so that both
agree.  `CoordinatorMetrics` keeps the rest: counts, and the newest progress and checkpoint.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from dtd.address import Address
from dtd.cluster.events import Disconnect, Effect, Incident
from dtd.cluster.state import ClusterState
from dtd.cluster.status import places_of
from dtd.observe.metrics.catalogue import Sample
from dtd.observe.metrics.endpoint import Context, Exposition
from dtd.observe.metrics.worker import next_in_ring, worker_samples
from dtd.wire import messages as m

PUBLISH_EVERY_S: Final = 0.5
MAX_NAMES: Final = 512
"""Workers and jobs whose counts are kept; the oldest are forgotten."""
MAX_KINDS: Final = 128
"""Metrics of an evaluation that are told apart."""


# Metrics of a job, and the keys of its status.
_OF_A_JOB: Final = {
    "step": "step",
    "planned_steps": "total_steps",
    "epoch": "epoch",
    "samples_per_second": "samples_per_s",
    "generation": "generation",
    "world_size": "world_size",
    "skipped_steps_total": "skipped_steps",
    "lost_steps_total": "steps_lost",
    "loss": "loss",
}


class CoordinatorMetrics:
    """The counts of one coordinator, and the endpoint that shows them with the figures of now.

    Attributes:
        certificate_expires_s: Unix time; None without a certificate.
        store_errors: calls to the store that have failed.
        reports_dropped: number of workers' reports left out, by (worker, kind).
    """

    def __init__(self, address: Address | None, context: Context | None = None) -> None:
        self.certificate_expires_s: float | None = None
        self.store_errors = 0
        self.reports_dropped: Mapping[tuple[str, str], int] = {}
        self._incarnations: dict[str, int] = {}
        self._restarts: Counter[str] = Counter()
        self._evictions: Counter[str] = Counter()
        self._incidents: Counter[str] = Counter()
        self._checkpoints: Counter[str] = Counter()
        self._progress: dict[str, m.Progress] = {}
        self._newest: dict[str, tuple[m.CheckpointSaved, float]] = {}
        self.exposition = Exposition(address, context)

    async def keep(
        self, look: Callable[[], tuple[Sequence[ClusterState], Mapping[str, Any]]]
    ) -> None:
        """Publish the current figures periodically until cancelled."""
        while self.exposition.address is not None:
            self.exposition.publish(self.samples(*look()))
            await asyncio.sleep(PUBLISH_EVERY_S)

    # --- what is counted ---------------------------------------------------------------------

    def registered(self, message: m.Register, *, released: bool) -> None:
        """Count a registration; a new process of a worker that did not leave is a restart."""
        before = self._incarnations.pop(message.name, message.incarnation)
        self._incarnations[message.name] = message.incarnation
        if before != message.incarnation and not released:
            self._restarts[message.name] += 1
        _forget_oldest(self._incarnations, self._restarts, self._evictions)

    def decided(self, effect: Effect) -> None:
        if isinstance(effect, Incident):
            self._incidents[effect.kind] += 1
        elif isinstance(effect, Disconnect):
            self._evictions[effect.name] += 1

    def reported(self, message: m.Message, *, unix_s: float) -> None:
        if isinstance(message, m.Progress):
            self._progress.pop(message.job, None)
            self._progress[message.job] = message
            _forget_oldest(self._progress)
        elif isinstance(message, m.CheckpointSaved):
            self._checkpoints[message.job] += 1
            _forget_oldest(self._checkpoints)
            newest = self._newest.pop(message.job, (message, unix_s))
            key = newest[0].generation, newest[0].step
            is_newer = key < (message.generation, message.step)
            self._newest[message.job] = (message, unix_s) if is_newer else newest
            _forget_oldest(self._newest)

    # --- samples -----------------------------------------------------------------------------

    def samples(
        self, clusters: Sequence[ClusterState], status: Mapping[str, Any]
    ) -> Iterator[Sample]:
        yield from self._of_the_cluster(status)
        for job in status["jobs"]:
            yield from _of_the_job(job)
            yield from self._of_progress(job)
        last = next(reversed(self._newest), "")  # that of a job that has ended stays
        for known in dict.fromkeys([*(job["id"] for job in status["jobs"]), last]):
            if known in self._newest:
                yield from _of_the_checkpoint(*self._newest[known])
        places = places_of(clusters)
        for worker in status["workers"]:
            name = worker["name"]
            cluster = places[name]
            beat = cluster.workers[name].liveness.heartbeat
            if beat is not None:
                yield from worker_samples(name, next_in_ring(cluster.run.roster, name), beat)
            if worker["last_heartbeat_s"] is not None:
                age_s = worker["last_heartbeat_s"]
                yield Sample("dtd_worker_heartbeat_age_seconds", (name,), age_s)

    def _of_the_cluster(self, status: Mapping[str, Any]) -> Iterator[Sample]:
        yield Sample("dtd_coordinator_uptime_seconds", (), status["coordinator"]["uptime_s"])
        yield Sample("dtd_queued_jobs", (), len(status["queue"]))
        yield Sample("dtd_store_errors_total", (), self.store_errors)
        for (worker, kind), count in self.reports_dropped.items():
            yield Sample("dtd_reports_dropped_total", (worker, kind), count)
        if self.certificate_expires_s is not None:
            expires_s = self.certificate_expires_s
            yield Sample("dtd_certificate_expiry_timestamp_seconds", (), expires_s)
        for state, count in Counter(worker["state"] for worker in status["workers"]).items():
            yield Sample("dtd_workers", (state,), count)
        for name in self._incarnations:
            yield Sample("dtd_worker_restarts_total", (name,), self._restarts[name])
            yield Sample("dtd_worker_evictions_total", (name,), self._evictions[name])
        for kind, count in self._incidents.items():
            yield Sample("dtd_incidents_total", (kind,), count)
        for job, count in self._checkpoints.items():
            yield Sample("dtd_checkpoints_total", (job,), count)

    def _of_progress(self, job: Mapping[str, Any]) -> Iterator[Sample]:
        progress = self._progress.get(job["id"])
        if progress is not None:
            yield Sample("dtd_job_learning_rate", (progress.job,), progress.learning_rate)
            yield Sample("dtd_job_gradient_norm", (progress.job,), progress.grad_norm)


def _of_the_checkpoint(newest: m.CheckpointSaved, at_s: float) -> Iterator[Sample]:
    job = (newest.job,)
    yield Sample("dtd_checkpoint_step", job, newest.step)
    yield Sample("dtd_checkpoint_size_bytes", job, newest.size_bytes)
    yield Sample("dtd_checkpoint_timestamp_seconds", job, at_s)
    if newest.write_s > 0:
        yield Sample("dtd_checkpoint_write_seconds", job, newest.write_s)


def _of_the_job(job: Mapping[str, Any]) -> Iterator[Sample]:
    for name, key in _OF_A_JOB.items():
        if job[key] is not None:
            yield Sample(f"dtd_job_{name}", (job["id"],), job[key])
    for kind in sorted(kind for kind, value in job["eval"].items() if value is not None)[
        :MAX_KINDS
    ]:
        yield Sample("dtd_job_evaluation", (job["id"], kind), job["eval"][kind])


def _forget_oldest(known: dict[str, Any], *others: dict[str, int]) -> None:
    while len(known) > MAX_NAMES:
        name = next(iter(known))
        for counts in (known, *others):
            counts.pop(name, None)
