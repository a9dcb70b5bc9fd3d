"""The status object (schema 1) from the membership's state.  Pure.

Fields are only ever added under one schema number; `docs/status.schema.json` describes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dtd.cluster import roster
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GONE, GenerationState, WorkerState
from dtd.doctor.memory import memory_of
from dtd.wire import messages as m

STATUS_SCHEMA: Final = 1
_NO_HEARTBEAT: Final = m.Heartbeat(state="")
_UNHEARD: Final = frozenset({WorkerState.LOST, WorkerState.RELEASED, WorkerState.DISCONNECTED})

_WITHOUT_JOB: Final = GONE | {WorkerState.IDLE, WorkerState.INCOMPATIBLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that has ended, and when (Unix time)."""

    job: Job
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherJobs:
    """The jobs beside the first one (`dtd.cluster.pools`).

    Attributes:
        clusters: the other jobs' clusters, and that of the workers without a job.
        explanations: why each active job does not advance, by its id.
        explain_queue: why the first job of the queue has not begun.
    """

    clusters: Sequence[ClusterState] = ()
    explanations: Mapping[str, str] = field(default_factory=dict)
    explain_queue: str = ""


def places_of(clusters: Sequence[ClusterState]) -> dict[str, ClusterState]:
    """The cluster to which each known worker belongs, by its name.

    A worker that has moved is gone where it was before.
    """
    places: dict[str, ClusterState] = {}
    for cluster in clusters:
        for name, worker in cluster.workers.items():
            if name not in places or worker.state not in GONE:
                places[name] = cluster
    return places


def status_of(
    cluster: ClusterState,
    *,
    explain: str,
    address: str,
    uptime_s: float,
    version: str,
    now: float,
    last_job: EndedJob | None = None,
    diagnostics: Sequence[Mapping[str, Any]] = (),
    other_jobs: OtherJobs | None = None,
) -> dict[str, Any]:
    """Return the content of `dtdctl status`; `cluster` is that of the first job."""
    other_jobs = other_jobs or OtherJobs(
        explanations={cluster.job.id: explain} if cluster.job else {}
    )
    clusters = (cluster, *other_jobs.clusters)
    places = places_of(clusters)
    names = sorted(places, key=roster.natural_key)
    return {
        "schema": STATUS_SCHEMA,
        "coordinator": {"address": address, "uptime_s": uptime_s, "version": version},
        "job": None if cluster.job is None else _job(cluster, cluster.job),
        "jobs": [
            {**_job(one, one.job), "explain": other_jobs.explanations.get(one.job.id, "")}
            for one in clusters
            if one.job is not None
        ],
        "workers": [_worker(places[name], places[name].workers[name], now) for name in names],
        "queue": [job.id for one in clusters for job in one.queue],
        "queue_explain": other_jobs.explain_queue,
        "explain": explain,
        "last_job": None if last_job is None else _ended(last_job),
        "troubles": [*diagnostics],
    }


def _job(cluster: ClusterState, job: Job) -> dict[str, Any]:
    rows = job.terms.global_batch_size
    running = cluster.running_beats()
    slowest_s = max((beat.step_s for beat in running.values()), default=0.0)
    return {
        "id": job.id,
        "name": job.name,
        "task": job.terms.task,
        "state": job.state.value,
        "verdict": job.verdict,
        "generation": job.generation,
        "world_size": len(cluster.run.roster),
        "servers": job.servers if cluster.run.roster else 0,
        "step": job.step,
        "total_steps": job.total_steps,
        "epoch": job.epoch,
        "epochs": job.terms.epochs,
        "loss": job.loss,
        "samples_per_s": rows / slowest_s if slowest_s > 0 else job.samples_per_s,
        "steps_lost": job.steps_lost,
        "skipped_steps": job.skipped_steps,
        "straggler": cluster.straggler.named(running),
        "redundancy": _redundancy(cluster, job),
        "reason": job.reason,
        "eval": dict(job.metrics),
    }


def _redundancy(cluster: ClusterState, job: Job) -> int | None:
    """Return how many members may be lost, whichever; None unless a sharded job trains."""
    trains = cluster.run.phase in (GenerationState.RUNNING, GenerationState.ENDING)
    if not job.terms.sharded or not trains:
        return None
    return roster.redundancy(job, [one.name for one in cluster.members() if one.state not in GONE])


def _shards(cluster: ClusterState, worker: Worker) -> dict[str, Any] | None:
    """Return a worker's shards of a sharded job's state; None if it has none, or not known."""
    job = cluster.job
    if job is None or not job.terms.sharded:
        return None
    step, where = roster.held_key(worker)[1], "memory"
    part = roster.part_of(worker.holdings.held)
    if worker.state in (WorkerState.RUNNING, WorkerState.FINISHED):
        step, part = job.step, roster.assigned_part(job, worker.name)
    elif worker.holdings.held is not None:
        where = worker.holdings.held.where
    if not part:
        return None
    shards = [[float(start), float(stop)] for start, stop in part.intervals]
    return {"step": step, "where": where, "shards": shards}


def _ended(ended: EndedJob) -> dict[str, Any]:
    job = ended.job
    return {
        "id": job.id,
        "name": job.name,
        "task": job.terms.task,
        "state": job.state.value,
        "step": job.step,
        "total_steps": job.total_steps,
        "steps_lost": job.steps_lost,
        "ended_s": ended.ended_s,
        "reason": job.reason,
        "traceback": str(job.result.get("traceback", "")),
    }


def _job_of(cluster: ClusterState, worker: Worker) -> str:
    """Id of the job for which a worker works or gets ready; empty without one."""
    if cluster.job is None or worker.state in _WITHOUT_JOB:
        return ""
    return cluster.job.id


def _worker(cluster: ClusterState, worker: Worker, now: float) -> dict[str, Any]:
    beat = worker.liveness.heartbeat or _NO_HEARTBEAT
    rank = cluster.run.roster.index(worker.name) if worker.name in cluster.run.roster else None
    unheard = worker.state in _UNHEARD
    return {
        "name": worker.name,
        "pid": worker.registration.pid,
        "state": worker.state.value,
        "rank": rank,
        "job": _job_of(cluster, worker),
        "host": worker.registration.host,
        "device": worker.registration.device,
        "role": "server" if worker.serves else "worker",
        "step": beat.step,
        "last_heartbeat_s": None if unheard else cluster.detector.silence_s(worker.name, now),
        "reason": worker.reason or beat.waiting,
        "samples_per_s": beat.samples_per_s,
        "step_s": beat.step_s,
        "compute_s": beat.compute_s,
        "comm_s": beat.comm_s,
        "exposed_s": beat.exposed_s,
        "own_s": beat.own_s,
        "memory_bytes": beat.memory_bytes,
        "memory": memory_of(beat.memory),
        "stalled_s": beat.stalled_s,
        "patience_s": beat.patience_s,
        "where": beat.where,
        "still_s": beat.still_s,
        "evidence": beat.evidence,
        "holds": _shards(cluster, worker),
    }
