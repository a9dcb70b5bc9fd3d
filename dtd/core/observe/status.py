"""The status object (schema 1) from the membership's books.  Pure.

Fields are only ever added under one schema number; `docs/status.schema.json` describes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dtd.core.membership import roster as choice
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.state import ClusterState
from dtd.core.membership.transitions import WorkerState
from dtd.wire import messages as m

STATUS_SCHEMA: Final = 1
_NO_HEARTBEAT: Final = m.Heartbeat(state="")
_UNHEARD: Final = frozenset({WorkerState.LOST, WorkerState.RELEASED, WorkerState.AWAY})


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that has ended, and when (Unix time)."""

    job: Job
    ended_s: float


def status_of(
    books: ClusterState,
    *,
    explain: str,
    address: str,
    uptime_s: float,
    version: str,
    now: float,
    last_job: EndedJob | None = None,
    troubles: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What `dtdctl status` shows."""
    names = sorted(books.workers, key=choice.natural_key)
    return {
        "schema": STATUS_SCHEMA,
        "coordinator": {"address": address, "uptime_s": uptime_s, "version": version},
        "job": None if books.job is None else _job(books, books.job),
        "workers": [_worker(books, books.workers[name], now) for name in names],
        "queue": [job.id for job in books.queue],
        "explain": explain,
        "last_job": None if last_job is None else _ended(last_job),
        "troubles": [*troubles],
    }


def _job(books: ClusterState, job: Job) -> dict[str, Any]:
    rows = int(job.spec["job"]["global_batch_size"])
    running = books.running_beats()
    slowest_s = max((beat.step_s for beat in running.values()), default=0.0)
    return {
        "id": job.id,
        "name": job.name,
        "task": job.spec["job"]["task"],
        "state": job.state.value,
        "verdict": job.verdict,
        "generation": job.generation,
        "world_size": len(books.run.roster),
        "step": job.step,
        "total_steps": job.total_steps,
        "epoch": job.epoch,
        "epochs": job.spec["job"].get("epochs"),
        "loss": job.loss,
        "samples_per_s": rows / slowest_s if slowest_s > 0 else job.samples_per_s,
        "steps_lost": job.steps_lost,
        "skipped_steps": job.skipped_steps,
        "straggler": books.straggler.named(running),
        "reason": job.reason,
        "eval": dict(job.metrics),
    }


def _ended(ended: EndedJob) -> dict[str, Any]:
    job = ended.job
    return {
        "id": job.id,
        "name": job.name,
        "task": job.spec["job"]["task"],
        "state": job.state.value,
        "step": job.step,
        "total_steps": job.total_steps,
        "steps_lost": job.steps_lost,
        "ended_s": ended.ended_s,
        "reason": job.reason,
        "traceback": str(job.result.get("traceback", "")),
    }


def _worker(books: ClusterState, worker: Worker, now: float) -> dict[str, Any]:
    beat = worker.liveness.heartbeat or _NO_HEARTBEAT
    rank = books.run.roster.index(worker.name) if worker.name in books.run.roster else None
    unheard = worker.state in _UNHEARD
    return {
        "name": worker.name,
        "pid": worker.registration.pid,
        "state": worker.state.value,
        "rank": rank,
        "host": worker.registration.host,
        "device": worker.registration.device,
        "step": beat.step,
        "last_heartbeat_s": None if unheard else books.detector.silence_s(worker.name, now),
        "reason": worker.reason or beat.waiting,
        "samples_per_s": beat.samples_per_s,
        "step_s": beat.step_s,
        "compute_s": beat.compute_s,
        "comm_s": beat.comm_s,
        "exposed_s": beat.exposed_s,
        "own_s": beat.own_s,
        "memory_bytes": beat.memory_bytes,
        "stalled_s": beat.stalled_s,
        "patience_s": beat.patience_s,
        "where": beat.where,
        "still_s": beat.still_s,
        "evidence": beat.evidence,
    }
