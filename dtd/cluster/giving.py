"""Which workers can be given to a job, and which a job can give away.

Each function looks at one job's cluster, and perhaps at the idle workers of the home cluster.  How
many a job gets is decided in `dtd.cluster.allocation`, and carried out by `dtd.cluster.pools`.
Pure.
"""

from __future__ import annotations

from typing import Final

from dtd.cluster import instructions, roster, waiting
from dtd.cluster.records import Job, Worker
from dtd.cluster.roster import natural_key
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GOES_ON, GenerationState, JobState, WorkerState

_TRAINS: Final = frozenset({WorkerState.RUNNING, WorkerState.FINISHED})
_JOINS: Final = frozenset({WorkerState.WARMING, WorkerState.READY})


def has(pool: ClusterState) -> int:
    """Return the number of workers on which a job can count, without parameter servers."""
    return sum(one.counts and not one.serves for one in pool.workers.values())


def is_short(pool: ClusterState) -> bool:
    """Whether a job would take more workers than it has."""
    return pool.job is not None and has(pool) < pool.job.terms.most


def tries_origin(pool: ClusterState) -> bool:
    """Whether one more worker is tried: the job starts from a checkpoint that none of its has."""
    job = pool.job
    if job is None or job.state not in GOES_ON or job.terms.by_hand:
        return False
    waits = pool.run.phase is GenerationState.NONE and pool.run.decision is None
    return waits and not pool.warming_since and waiting.lacks_origin(pool, job)


def may_leave(pool: ClusterState, job: Job) -> list[Worker]:
    """The workers that could leave a job, in the order in which they would.

    Only a job that trains undisturbed, and has committed a step with these members, gives any:
    first those that have not joined yet, then the last ranks.
    """
    trains = pool.run.phase is GenerationState.RUNNING and job.state is JobState.RUNNING
    members = pool.members() if trains and job.step > job.start_step else []
    if not members or any(one.leaving or one.state is not WorkerState.RUNNING for one in members):
        return []
    joining = [one for one in pool.workers.values() if one.state in _JOINS and one.counts]
    found = [one for one in joining if not (one.serves or one.reconnection.returning)]
    for one in reversed(members):
        names = [other.name for other in found if other in members]
        if not one.serves and roster.can_spare(job, *names, one.name):
            found.append(one)
    return found


def idle(home: ClusterState, *, serves: bool = False) -> list[Worker]:
    """The workers, or parameter servers, that have nothing to do, in the order of their names."""
    found = (one for one in home.workers.values() if one.state is WorkerState.IDLE)
    return sorted(
        (one for one in found if one.serves == serves and not one.leaving),
        key=lambda one: natural_key(one.name),
    )


def next_for(pool: ClusterState, home: ClusterState, now: float, *, lacks: bool) -> Worker | None:
    """The idle worker that the pool gets next: one that may hold its job's state, if there is one.

    None if it `lacks` none, or every idle one is set aside for its job.  A job with parameter
    servers gets all that idle.
    """
    job = pool.job
    if job is None or job.terms.by_hand:
        return None
    offered = idle(home) if lacks else []
    if job.terms.has_servers and job.state in GOES_ON:
        offered += idle(home, serves=True)
    known = {*job.roster, *job.checkpoint_holders}
    free = [one for one in offered if fits(pool, job, one, now)]
    return min(free, key=lambda one: one.name not in known, default=None)


def fits(pool: ClusterState, job: Job, worker: Worker, now: float) -> bool:
    """Whether the job can be tried on a worker, and its processor can compute the updates."""
    return set_aside_until(pool, worker, now) is None and not instructions.why_not(job, worker)


def tried_again_at(pool: ClusterState, home: ClusterState, now: float) -> float | None:
    """Return when the next idle worker set aside for the pool's job may be tried again."""
    times = (set_aside_until(pool, one, now) for one in idle(home))
    return min((at for at in times if at is not None), default=None)


def set_aside_until(pool: ClusterState, worker: Worker, now: float) -> float | None:
    """Return until when the pool's job is not tried on this worker; None if it may be now."""
    aside = pool.set_aside.get(worker.name)
    if aside is None or now >= aside.until or aside.pid != worker.registration.pid:
        return None
    return aside.until


def surplus(pool: ClusterState) -> list[Worker]:
    """Ready workers beyond the number of a job all of whose members train."""
    job = pool.job
    if job is None or job.terms.by_hand:
        return []
    whole = len(pool.run.roster) - job.servers >= job.terms.most
    trains = pool.run.phase is GenerationState.RUNNING and whole
    if not trains or any(one.state not in _TRAINS for one in pool.members()):
        return []
    ready = (one for one in pool.workers.values() if one.state is WorkerState.READY)
    return [one for one in ready if not one.serves]
