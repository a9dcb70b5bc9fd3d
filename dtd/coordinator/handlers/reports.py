"""Messages of workers: reports of their jobs are kept and go to the core, requests are answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from dtd.cluster.events import FromWorker
from dtd.cluster.records import Job
from dtd.cluster.reports import check_form
from dtd.coordinator.coordinator import Coordinator
from dtd.coordinator.handlers.workers import parts_of
from dtd.net.link import Link
from dtd.observe.metrics.worker import next_in_ring
from dtd.wire import messages as m


def on_report(
    coordinator: Coordinator, link: Link, name: str, message: m.Message, payload: memoryview
) -> None:
    """Handle a registered worker's message."""
    check_form(message)
    answer = ANSWERED.get(type(message))
    if answer is not None:
        answer(coordinator, link, name, message)
        return
    membership = coordinator.membership
    if not (membership.awaits(name, message) or coordinator.reports.heeds(name, message)):
        return
    if membership.hears(name, message):
        _keep(coordinator, name, message, payload)
    coordinator.handle(FromWorker(name=name, message=message))


def _answer_parts(coordinator: Coordinator, link: Link, name: str, message: m.GetParts) -> None:
    async def answer() -> None:
        link.send(await parts_of(coordinator, name, message))

    coordinator.part_answers.begin(link, answer)


ANSWERED: Final[Mapping[type[m.Message], Callable[[Coordinator, Link, str, Any], None]]] = {
    m.GetPackage: lambda coordinator, link, _, message: coordinator.counter(message).ask(
        link, message
    ),
    m.GetParts: _answer_parts,
    m.ModelsHeld: lambda coordinator, _, name, message: coordinator.models.heard(name, message),
    m.ModelPinned: lambda coordinator, _, name, message: coordinator.models.heard(name, message),
    m.CheckpointDropped: lambda coordinator, _, name, message: coordinator.deletions.dropped(
        name, message
    ),
    m.Measured: lambda coordinator, _, name, message: coordinator.broker.measured(name, message),
}
"""Messages that the core has no part in."""


def _keep(coordinator: Coordinator, name: str, message: m.Message, payload: memoryview) -> None:
    """Store a worker's accepted report, and add it to the figures."""
    coordinator.metrics.figures.reported(message, unix_s=time.time())
    if isinstance(message, m.JobOutput):
        coordinator.reports.output(name, message, bytes(payload))
    elif isinstance(message, m.CheckpointSaved):
        coordinator.store_thread.later(coordinator.store.save_checkpoint, name, message)
        coordinator.diagnostics.saved(name)
    cluster = coordinator.membership.cluster_of(name)
    job = cluster.job
    if job is not None and getattr(message, "job", "") == job.id:  # of no other job
        to = next_in_ring(cluster.run.roster, name)
        _keep_figures(coordinator, name, job, message, to)


def _keep_figures(
    coordinator: Coordinator, name: str, job: Job, message: m.Message, to: str
) -> None:
    if isinstance(message, m.Progress):
        coordinator.history.progress(job.identity, message)
        coordinator.trackers.reported(job, message)
    elif isinstance(message, m.Evaluated):
        coordinator.history.evaluated(job.identity, message)
        coordinator.sweeps.evaluated(message)
        coordinator.trackers.reported(job, message)
    elif isinstance(message, m.Heartbeat):
        coordinator.history.heartbeat(name, job.identity, message, to)
