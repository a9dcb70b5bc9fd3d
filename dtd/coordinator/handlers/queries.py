"""Operators' requests that change nothing: status, jobs, logs, events, audit, checkpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from dtd import __version__
from dtd.cluster.checkpoints import VERIFIED
from dtd.cluster.status import EndedJob, status_of
from dtd.coordinator.handlers.api import CoordinatorApi, known_job
from dtd.coordinator.handlers.runs import compare_jobs
from dtd.observe.metrics.worker import next_in_ring
from dtd.wire import messages as m

QUESTIONS: Final = (
    m.GetStatus,
    m.GetFigures,
    m.GetMetrics,
    m.ListJobs,
    m.CompareJobs,
    m.ListModels,
    m.ShowJob,
    m.ReadLogs,
    m.ReadEvents,
    m.ReadAudit,
    m.ListCheckpoints,
)

STEP_TIMES: Final = ("step_s", "data_s", "compute_s", "exposed_s", "optimizer_s", "own_s")


class Queries:
    """Answers made of the membership's state and the store.

    Args:
        coordinator: the daemon that is asked about.
        last_job: the job that ended last before it was started.

    Attributes:
        last_job: the job that ended last.
    """

    def __init__(self, coordinator: CoordinatorApi, *, last_job: EndedJob | None) -> None:
        self.last_job = last_job
        self._coordinator = coordinator
        self._news = asyncio.Event()

    def something_happened(self) -> None:
        """Wake the requests that follow events."""
        self._news.set()
        self._news = asyncio.Event()

    async def answer(self, request: m.Message) -> dict[str, Any]:
        """Look it up.

        Raises:
            RequestRefused: it is about a job that does not exist.
        """
        if isinstance(request, m.GetStatus):
            return self._status()
        if isinstance(request, m.GetFigures):
            return self._figures(request.job)
        store = self._coordinator.store
        in_store = self._coordinator.in_store
        if isinstance(request, m.ListJobs):
            return {"jobs": await in_store(store.jobs, request.tag)}
        if isinstance(request, m.ListModels):
            return await self._coordinator.models.listed(request)
        if isinstance(request, m.CompareJobs):
            return await compare_jobs(self._coordinator, request)
        if isinstance(request, m.ShowJob):
            return await self._show(request.job)
        if isinstance(request, m.GetMetrics):
            await known_job(self._coordinator, request.job)
            return await self._coordinator.history.answer(request)
        if isinstance(request, m.ReadLogs):
            await known_job(self._coordinator, request.job)
            lines = await self._coordinator.after_lines(store.lines, request.job, request.after)
            return {"lines": lines, "next": lines[-1]["seq"] if lines else request.after}
        if isinstance(request, m.ReadEvents):
            return await self._events(request)
        if isinstance(request, m.ReadAudit):
            return await self._coordinator.audit.read(request)
        assert isinstance(request, m.ListCheckpoints)
        found = await in_store(store.checkpoints, request.job)
        listed = [self._checkpoint(one, ticket=request.tickets) for one in found]
        answer: dict[str, Any] = {"checkpoints": listed}
        if request.job:
            answer["spec"] = (await known_job(self._coordinator, request.job))["spec"]
        return answer

    async def _show(self, job_id: str) -> dict[str, Any]:
        """Return a job's stored details, with those that only memory has while it is active."""
        store, in_store = self._coordinator.store, self._coordinator.in_store
        await known_job(self._coordinator, job_id)
        details = await self._coordinator.after_lines(store.job_details, job_id)
        found = await in_store(store.checkpoints, job_id)
        assert details is not None
        active = self._coordinator.membership.cluster_with(job_id).job
        if active is not None and active.id == job_id:
            details |= {
                "step": active.step,
                "epoch": active.epoch,
                "metrics": dict(active.metrics),
                "skipped_steps": active.skipped_steps,
            }
        return {**details, "checkpoints": [self._checkpoint(one, ticket=False) for one in found]}

    def _status(self) -> dict[str, Any]:
        coordinator = self._coordinator
        return status_of(
            coordinator.membership.cluster,
            explain=coordinator.membership.explain(),
            address=coordinator.address,
            uptime_s=time.monotonic() - coordinator.started_s,
            version=__version__,
            now=coordinator.now,
            last_job=self.last_job,
            diagnostics=coordinator.diagnostics.listing(),
            beside=coordinator.membership.beside(),
        )

    def _figures(self, job_id: str) -> dict[str, Any]:
        pools = self._coordinator.membership
        cluster = pools.cluster_with(job_id) if job_id else pools.cluster
        known = job_id or (cluster.job.id if cluster.job is not None else "")
        beats = {worker.name: worker.liveness.heartbeat for worker in cluster.workers.values()}
        heard = {name: beat for name, beat in beats.items() if beat is not None}
        return {
            "job": known,
            "workers": [
                {"name": name, **{key: getattr(beat, key) for key in STEP_TIMES}}
                for name, beat in heard.items()
                if beat.step_s > 0
            ],
            "links": _links(heard, cluster.run.roster),
        }

    async def _events(self, request: m.ReadEvents) -> dict[str, Any]:
        store = self._coordinator.store
        while True:
            news = self._news
            found = await self._coordinator.in_store(store.events, request.after)
            if found or not request.follow:
                return {"events": found, "next": found[-1]["seq"] if found else request.after}
            await news.wait()

    def _checkpoint(self, found: dict[str, Any], *, ticket: bool) -> dict[str, Any]:
        name = found["worker"]
        worker = self._coordinator.membership.cluster_of(name).workers.get(name)
        alive = found["worker"] in self._coordinator.connected()
        path = PurePosixPath(found["directory"])
        folder, name = path.parent.name, path.name
        shown = self._ticket(found["worker"], folder, name) if ticket and alive else {}
        return {
            **found,
            **shown,
            "name": name,
            "folder": folder,
            "verified": found["confirmation"] == VERIFIED,
            "alive": alive,
            "data_host": worker.registration.data_host if worker is not None else "",
            "data_port": worker.registration.data_port if worker is not None else 0,
        }

    def _ticket(self, worker: str, folder: str, name: str) -> dict[str, Any]:
        expires_s, key = self._coordinator.ticket(worker, f"checkpoint/{folder}/{name}")
        return {"ticket_expires_s": expires_s, "ticket_key": key}


def _links(beats: Mapping[str, m.Heartbeat], roster: Sequence[str]) -> list[dict[str, Any]]:
    """Return each rank's figures of the link to the next one."""
    return [
        {
            "from": name,
            "to": to,
            "rtt_s": beats[name].rtt_s,
            "bytes_per_s": beats[name].link_bytes_per_s,
        }
        for name in roster
        if (to := next_in_ring(roster, name)) and name in beats
    ]
