"""Allocation of workers to several jobs that run at the same time.

A job that names `elastic.workers` runs on a *pool*: its own part of the workers, with its own
machine (`membership.machine`), which knows no others.  All other workers are *at home*, where they
idle, or train the one job that takes all of them.  The rules:

* a worker that has left a pool by itself, or has just come, goes to the first job that lacks one;
* jobs begin in the order of the queue; the first one waits until as many workers idle as it takes,
  or no other job is active, and nothing overtakes it;
* no worker is taken from a job that can use it; what a job has beyond its number is released.

Pure functions over the clusters' states; `membership.pools` applies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dtd.cluster import waiting
from dtd.cluster.records import Job, Worker
from dtd.cluster.roster import natural_key
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GOES_ON, GONE, GenerationState, JobState, WorkerState
from dtd.wire import messages as m

MOST_POOLS: Final = 32
"""Most jobs that run at the same time."""

SURPLUS: Final = "its job has as many workers as it takes"

_OF_NO_USE: Final = GONE | {WorkerState.INCOMPATIBLE, WorkerState.ISOLATED}
_TRAINS: Final = frozenset({WorkerState.RUNNING, WorkerState.FINISHED})


def resumes_in_pool(job: Job) -> bool:
    """Whether the job, read from the store, ran in a pool when the coordinator ended."""
    return bool(job.terms.workers) and job.state is not JobState.QUEUED


def in_order(unfinished: Sequence[Job]) -> list[Job]:
    """The jobs of a store in the order in which a coordinator takes them up: the begun ones first.

    One that was submitted later may have begun before others, if the store failed in between: it
    trains, and must not wait for jobs that would be given its workers.
    """
    return sorted(unfinished, key=lambda job: job.state is JobState.QUEUED)


def lacking(pool: ClusterState) -> int:
    """Return the number of workers that the pool's job lacks, without parameter servers.

    A job that starts from a checkpoint that none of its workers has gets one more at a time.
    """
    job = pool.job
    if job is None or job.state not in GOES_ON:
        return 0
    useful = [one for one in pool.workers.values() if one.state not in _OF_NO_USE]
    lacks = job.terms.workers - sum(not (one.leaving or one.serves) for one in useful)
    if lacks > 0:
        return lacks
    waits = pool.run.phase is GenerationState.NONE and pool.run.decision is None
    tries = waits and not pool.warming_since and waiting.lacks_origin(pool, job)
    return int(tries)


def idle(home: ClusterState, *, serves: bool = False) -> list[Worker]:
    """The workers, or parameter servers, that have nothing to do, in the order of their names."""
    found = (one for one in home.workers.values() if one.state is WorkerState.IDLE)
    return sorted(
        (one for one in found if one.serves == serves and not one.leaving),
        key=lambda one: natural_key(one.name),
    )


def next_for(pool: ClusterState, home: ClusterState, now: float) -> Worker | None:
    """The idle worker that the pool gets next: one that may hold its job's state, if there is one.

    None if it lacks none, or every idle one is set aside for its job.  A job with parameter servers
    gets all that idle.
    """
    job = pool.job
    if job is None:
        return None
    offered = idle(home) if lacking(pool) else []
    if job.terms.has_servers and job.state in GOES_ON:
        offered += idle(home, serves=True)
    known = {*job.roster, *job.checkpoint_holders}
    free = [one for one in offered if _set_aside_until(pool, one, now) is None]
    return min(free, key=lambda one: one.name not in known, default=None)


def tried_again_at(pool: ClusterState, home: ClusterState, now: float) -> float | None:
    """Return when the next idle worker set aside for the pool's job may be tried again."""
    if not lacking(pool):
        return None
    times = (_set_aside_until(pool, one, now) for one in idle(home))
    return min((at for at in times if at is not None), default=None)


def _set_aside_until(pool: ClusterState, worker: Worker, now: float) -> float | None:
    aside = pool.isolation.set_aside.get(worker.name)
    if aside is None or now >= aside.until or aside.pid != worker.registration.pid:
        return None
    return aside.until


def surplus(pool: ClusterState) -> list[Worker]:
    """Ready workers beyond the number of a job all of whose members train."""
    job = pool.job
    whole = job is not None and len(pool.run.roster) - job.servers >= job.terms.workers
    trains = pool.run.phase is GenerationState.RUNNING and whole
    if not trains or any(one.state not in _TRAINS for one in pool.members()):
        return []
    ready = (one for one in pool.workers.values() if one.state is WorkerState.READY)
    return [one for one in ready if not one.serves]


def place_of(message: m.Register, pools: Sequence[ClusterState]) -> ClusterState | None:
    """The pool in which a worker registers; None: at home, from where it is given to a job.

    A worker with a state of a job goes to that job, and so does a new process of a member whose
    generation is not known to have stopped: the job has to hear of it.
    """
    for pool in pools:
        job = pool.job
        if job is None:
            continue
        returns = message.generation > 0 and message.job == job.id
        if returns or (message.name in job.roster and not job.fenced):
            return pool
        if message.generation == 0 and _waits_for(pool, job, message.name):
            return pool
    return None


def _waits_for(pool: ClusterState, job: Job, name: str) -> bool:
    """Whether the job waits for this worker, as it may have a newer state on its disk."""
    waits = pool.run.phase is GenerationState.NONE and pool.run.decision is None
    return waits and job.state in GOES_ON and name in waiting.absent_holders(pool, job)


def may_begin(job: Job, home: ClusterState, pools: Sequence[ClusterState]) -> bool:
    """Whether the first job of the queue may begin in a pool of its own now."""
    if not job.terms.workers or home.job is not None or len(pools) >= MOST_POOLS:
        return False
    if not pools:
        return True
    served = not job.terms.has_servers or bool(idle(home, serves=True))
    return served and len(idle(home)) >= job.terms.workers


def why_not_begun(home: ClusterState, pools: Sequence[ClusterState]) -> str:
    """Why the first job of the queue has not begun, in words; empty if none is queued."""
    if not home.queue:
        return ""
    job, active = home.queue[0], [home.job] if home.job is not None else []
    active += [pool.job for pool in pools if pool.job is not None]
    before = ", ".join(one.id for one in active)
    if not job.terms.workers:
        return f"{job.id} takes all workers: it begins after {before}"
    if home.job is not None:
        return f"{job.id} begins after {before}, which takes all workers"
    if len(pools) >= MOST_POOLS:
        return f"{job.id} waits: {MOST_POOLS} jobs run already"
    takes = f"{job.terms.workers} workers"
    if job.terms.has_servers:
        takes += " and a parameter server"
    return f"{job.id} takes {takes}; {len(idle(home))} idle; before it: {before}"
