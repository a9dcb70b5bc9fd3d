"""Content of `dtdctl status`: the status object (schema 1), and the latest diagnostics.  Pure.

Fields are only ever added under one schema number; `docs/status.schema.json` describes them.

Some diagnostics follow from the cluster's state, and are resolved when they no longer do.  Others
are events, such as a refused caller, and are resolved when that host succeeds, or long after the
last one.  At most `MAX_DIAGNOSTICS` are kept; the least recent is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dtd import diagnostics as texts
from dtd.cluster.generation import states
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GONE, GenerationState, WorkerState
from dtd.cluster.workers.admission import is_set_aside
from dtd.cluster.workers.stuck import why_late
from dtd.diagnostics import Diagnostic
from dtd.doctor.memory import memory_of
from dtd.text.names import SCRIPT, natural_key
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
    clusters: Sequence[ClusterState],
    *,
    explain: str,
    address: str,
    uptime_s: float,
    version: str,
    now: float,
    last_job: EndedJob | None = None,
    diagnostics: Sequence[Mapping[str, Any]] = (),
    explanations: Mapping[str, str] | None = None,
    explain_queue: str = "",
    allotments: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the content of `dtdctl status`.

    The first of the clusters is that of the first job, or of the workers without one, and `explain`
    says why it does not advance; `explanations` says it of each active job, by its id, and
    `explain_queue` of the first job of the queue; `allotments` has the numbers of workers of jobs
    that share them.  `diagnostics`: from `Diagnostics.listing`.
    """
    cluster, why, shared = clusters[0], explanations or {}, allotments or {}
    if cluster.job is not None:
        why = {cluster.job.id: explain, **why}
    places = places_of(clusters)
    names = sorted(places, key=natural_key)
    return {
        "schema": STATUS_SCHEMA,
        "coordinator": {"address": address, "uptime_s": uptime_s, "version": version},
        "job": None if cluster.job is None else _job(cluster, cluster.job),
        "jobs": [
            {
                **_job(one, one.job),
                "explain": why.get(one.job.id, ""),
                "allotment": shared.get(one.job.id),
            }
            for one in clusters
            if one.job is not None
        ],
        "workers": [_worker(places[name], places[name].workers[name], now) for name in names],
        "queue": [job.id for one in clusters for job in one.queue],
        "queue_explain": explain_queue,
        "explain": explain,
        "last_job": None if last_job is None else _ended(last_job),
        "troubles": [*diagnostics],
    }


def _job(cluster: ClusterState, job: Job) -> dict[str, Any]:
    rows = 0 if job.terms.task.endswith(SCRIPT) else job.terms.global_batch_size
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
        "samples_per_s": rows / slowest_s if rows and slowest_s > 0 else job.samples_per_s,
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
    return states.redundancy(job, [one.name for one in cluster.members() if one.state not in GONE])


def _shards(cluster: ClusterState, worker: Worker) -> dict[str, Any] | None:
    """Return a worker's shards of a sharded job's state; None if it has none, or not known."""
    job = cluster.job
    if job is None or not job.terms.sharded:
        return None
    step, where = states.held_key(worker)[1], "memory"
    part = states.part_of(worker.holdings.held)
    if worker.state in (WorkerState.RUNNING, WorkerState.FINISHED):
        step, part = job.step, states.assigned_part(job, worker.name)
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
        "addresses": _addresses(worker),
        "device": worker.registration.device,
        "role": "server" if worker.serves else "worker",
        "step": beat.step,
        "last_heartbeat_s": None if unheard else cluster.detector.silence_s(worker.name, now),
        "reason": worker.reason or beat.waiting,
        "rows": beat.rows,
        "samples_per_s": beat.samples_per_s,
        "step_s": beat.step_s,
        "compute_s": beat.compute_s,
        "comm_s": beat.comm_s,
        "exposed_s": beat.exposed_s,
        "own_s": beat.own_s,
        "sent_bytes": beat.sent_bytes,
        "plain_bytes": beat.plain_bytes,
        "memory_bytes": beat.memory_bytes,
        "memory": memory_of(beat.memory),
        "stalled_s": beat.stalled_s,
        "patience_s": beat.patience_s,
        "where": beat.where,
        "still_s": beat.still_s,
        "evidence": beat.evidence,
        "holds": _shards(cluster, worker),
    }


MAX_DIAGNOSTICS: Final = 32
FORGOTTEN_S: Final = 600.0


@dataclass(slots=True)
class _Known:
    diagnostic: Diagnostic
    since_s: float
    last_s: float
    standing: bool


class Diagnostics:
    """The diagnostics of a cluster; times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def note(self, diagnostic: Diagnostic, now: float, *, standing: bool = False) -> bool:
        """Record one; returns whether it is new.  A standing one lasts until `stand` lacks it."""
        key = diagnostic.where, diagnostic.kind
        known = self._known.pop(key, None)
        since_s = now if known is None else known.since_s
        self._known[key] = _Known(diagnostic, since_s, now, standing)
        while len(self._known) > MAX_DIAGNOSTICS:
            self._known.popitem(last=False)
        return known is None or known.diagnostic.message != diagnostic.message

    def stand(self, found: Iterable[Diagnostic], now: float) -> list[Diagnostic]:
        """Replace all standing diagnostics by these; returns the new ones."""
        found = list(found)
        keys = {(one.where, one.kind) for one in found}
        for key, known in list(self._known.items()):
            if known.standing and key not in keys:
                del self._known[key]
        return [one for one in found if self.note(one, now, standing=True)]

    def over(self, *where: str, kind: str = "") -> None:
        """Resolve the diagnostics of these hosts or workers, of one kind or of all."""
        for key, known in list(self._known.items()):
            if not known.standing and key[0] in where and kind in ("", key[1]):
                del self._known[key]

    def listing(self, now: float) -> list[dict[str, Any]]:
        """The diagnostics as `dtdctl status` shows them, the latest last."""
        for key, known in list(self._known.items()):
            if not known.standing and now - known.last_s > FORGOTTEN_S:
                del self._known[key]
        return [
            {
                "since_s": max(0.0, now - known.since_s),
                "where": known.diagnostic.where,
                "kind": known.diagnostic.kind,
                "message": known.diagnostic.sentence,
                "remedy": known.diagnostic.remedy,
            }
            for known in self._known.values()
        ]


def standing(cluster: ClusterState) -> list[Diagnostic]:
    """The diagnostics that follow from the cluster's state now."""
    refused = [w for w in cluster.workers.values() if w.state is WorkerState.INCOMPATIBLE]
    found = [_refused(cluster, worker) for worker in refused]
    kept = [worker for worker in cluster.workers.values() if worker.liveness.kept]
    found += [
        texts.stands_still(w.name, w.registration.host, why_late(w), w.liveness.kept) for w in kept
    ]
    return found + _bad_links(cluster)


def _bad_links(cluster: ClusterState) -> list[Diagnostic]:
    found, links = [], cluster.links
    one_way = links.one_way()
    for pair in sorted(links.bad):
        one, other = (cluster.workers.get(name) for name in pair)
        if one is None or other is None:
            continue
        if pair in one_way:
            by, of = (one, other) if one_way[pair] == one.name else (other, one)
            found.append(texts.one_way(by.name, of.name, _at(of)))
            continue
        tell = texts.narrow_way if links.is_narrow(pair) else texts.no_way
        found.append(tell(one.name, _at(one), other.name, _at(other)))
    return found


def _refused(cluster: ClusterState, worker: Worker) -> Diagnostic:
    if is_set_aside(cluster, worker):
        failed = cluster.set_aside[worker.name].failed
        return texts.set_aside(
            worker.name, worker.registration.host, failed.reason.partition("\n")[0]
        )
    if not worker.foreign:
        return texts.unfit(worker.name, worker.registration.host, worker.reason)
    return texts.versions_differ(
        worker.name,
        worker.registration.host,
        worker.registration.version,
        coordinator_host=cluster.identity.host,
        ours=cluster.identity.version,
    )


def _at(worker: Worker) -> str:
    return " or ".join(_addresses(worker))


def _addresses(worker: Worker) -> list[str]:
    """The addresses of its data port, best first; none if it has not come back yet."""
    at = worker.registration
    hosts = (at.data_host, *at.others) if at.data_port else ()
    return [
        f"[{host}]:{at.data_port}" if ":" in host else f"{host}:{at.data_port}" for host in hosts
    ]
