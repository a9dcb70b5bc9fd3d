"""Which workers can be given to a job, which a job can give away, and whether a job may begin.

How many workers a job gets is decided in `dtd.cluster.several_jobs.allocation`; all of it is
carried out by `dtd.cluster.several_jobs.pools`.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dtd.cluster.generation import states, waiting
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GOES_ON, GenerationState, JobState, WorkerState
from dtd.cluster.workers import instructions
from dtd.text.names import natural_key
from dtd.text.shown import counted
from dtd.wire import messages as m

MOST_POOLS: Final = 32
"""Most jobs that run at the same time."""

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
        if not one.serves and states.can_spare(job, *names, one.name):
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


# --- several jobs: which of them takes a worker, and which may begin ---------------------------


def sharing(pools: Sequence[ClusterState]) -> list[ClusterState]:
    """The pools that share all workers: those whose job was not given its own by hand."""
    return [pool for pool in pools if pool.job is None or not pool.job.terms.by_hand]


def on_their_way(pools: Sequence[ClusterState]) -> list[Worker]:
    """The workers that leave a job for another one, or have left and not registered again."""
    workers = (one for pool in pools for one in pool.workers.values())
    return [
        one for one in workers if one.moving_since is not None and one.state is not WorkerState.LOST
    ]


def room(pools: Sequence[ClusterState]) -> int:
    """How many more jobs may run at the same time."""
    return MOST_POOLS - len(pools)


def place_of(message: m.Register, pools: Sequence[ClusterState]) -> ClusterState | None:
    """The pool in which a worker registers; None: at home, from where it is given to a job.

    A worker with a state of a job goes to that job, and so does a new process of a member whose
    generation is not known to have stopped: the job has to hear of it.  A process that was started
    by hand goes to its job alone.
    """
    for pool in pools:
        job = pool.job
        if job is None or (message.joined != job.id if message.joined else job.terms.by_hand):
            continue
        if message.joined:
            return pool
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
    if not job.terms.least or home.job is not None or room(pools) <= 0:
        return False
    if not sharing(pools):
        return True
    served = not job.terms.has_servers or bool(idle(home, serves=True))
    return served and len(idle(home)) >= job.terms.least


def why_not_begun(home: ClusterState, pools: Sequence[ClusterState]) -> str:
    """Why the first job of the queue has not begun, in words; empty if none is queued."""
    if not home.queue:
        return ""
    job, active = home.queue[0], [home.job] if home.job is not None else []
    active += [pool.job for pool in sharing(pools) if pool.job is not None]
    before = ", ".join(one.id for one in active)
    if not job.terms.least:
        return f"{job.id} takes all workers: it begins after {before}"
    if home.job is not None:
        return f"{job.id} begins after {before}, which takes all workers"
    if room(pools) <= 0:
        return f"{job.id} waits: {len(pools)} jobs run already"
    takes = counted(job.terms.least, "worker")
    if job.terms.most > job.terms.least:
        takes += f" or more, up to {job.terms.most}"
    if job.terms.has_servers:
        takes += " and a parameter server"
    moving = [one.name for one in on_their_way(pools)]
    comes = f"; {', '.join(moving)} to leave another job" if moving else ""
    return f"{job.id} takes {takes}; {len(idle(home))} idle{comes}; before it: {before}"
