"""Several jobs at once: the home cluster, and one more for each job on workers of its own.

    an event -> the cluster that it concerns -> all others look at the clock -> workers are given

Each cluster is a whole `ClusterState` with one job, and all rules of `dtd.cluster.machine` hold
within it; none knows of the others.  This file passes events on, moves idle workers, and keeps the
numbers of generations apart.  A worker moves only while it has no job: its record goes from one
cluster to the other, its connection stays.  The rules:

* a worker that has left a pool by itself, or has just come, goes to the first job that lacks one;
* jobs begin in the order of the queue; the first one waits until as many workers idle as it takes,
  or no other job is active, and nothing overtakes it;
* no worker is taken from a job that can use it; what a job has beyond its number is released;
* a job with `elastic.by_hand` begins at once, whatever else runs, and its workers are the processes
  that register for it: they get no other job, and it gets no other worker.

Without jobs that name `elastic.workers` or `elastic.by_hand` there is the home cluster alone.
Pure: events and a clock value in, effects out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dtd.cluster import admission, instructions, jobs, machine, waiting
from dtd.cluster.events import (
    CancelRequested,
    DeleteRequested,
    DrainRequested,
    Effect,
    Event,
    FromWorker,
    HappenedElsewhere,
    JobSaved,
    KillRequested,
    ResumeRequested,
    Revoked,
    Submitted,
    Ticked,
    Undeliverable,
    WorkerLost,
)
from dtd.cluster.machine import connected, counts
from dtd.cluster.records import Job, Worker
from dtd.cluster.registration import NEVER_HEARD
from dtd.cluster.roster import natural_key
from dtd.cluster.run import Run
from dtd.cluster.state import ClusterState, CoordinatorIdentity
from dtd.cluster.transitions import ENDED, GOES_ON, GONE, GenerationState, JobState, WorkerState
from dtd.errors import RequestRefused
from dtd.wire import messages as m

AGAIN = "the worker registered again"


class Pools:
    """The whole control plane of one cluster; several jobs may run in it.

    Args:
        heartbeat_interval_s: how often workers are told to send heartbeats.
        heartbeat_timeout_s: silence after which a worker counts as lost.
        last_generation: the highest number ever announced; new ones exceed it.
        identity: this coordinator's version and host.

    Attributes:
        home: has the queue, all workers without a job, and the job that takes all.
    """

    def __init__(
        self,
        *,
        heartbeat_interval_s: float = 0.25,
        heartbeat_timeout_s: float = 1.5,
        last_generation: int = 0,
        identity: CoordinatorIdentity | None = None,
    ) -> None:
        self.home = ClusterState(
            heartbeat_interval_s=heartbeat_interval_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
            identity=identity or CoordinatorIdentity(),
            run=Run(highest=last_generation),
        )
        self._pools: list[ClusterState] = []
        self._at_work = self.home

    # --- events ----------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Advance by one event.

        Raises:
            RequestRefused: an operator's request cannot be met; nothing has changed.
        """
        self.home.effects.clear()
        receiver = self._receiver(event, now)
        if receiver is None:
            assert isinstance(event, Submitted), "every other event has a receiver"
            self._open(event.job, now)
        else:
            self._pass(receiver, event, now)
        seen = event if isinstance(event, Ticked) else HappenedElsewhere()
        for cluster in self.all_clusters():
            if cluster is not receiver:
                self._pass(cluster, seen, now)
        self._allot(now)
        return self.take_decided()

    def take_decided(self) -> list[Effect]:
        """The effects of the current event, once; after an error, those decided before it."""
        decided = [*self.home.effects]
        self.home.effects.clear()
        return decided

    def _pass(self, cluster: ClusterState, event: Event, now: float) -> None:
        self._keep_numbers_apart()
        self._at_work = cluster
        machine.handle(cluster, event, now)

    def _receiver(self, event: Event, now: float) -> ClusterState | None:
        """The cluster that an event concerns; None for a job that resumes in a new pool."""
        if isinstance(event, FromWorker) and isinstance(event.message, m.Register):
            return self._place(event.message, now)
        if isinstance(event, FromWorker | WorkerLost | Revoked):
            return self.cluster_of(event.name)
        if isinstance(event, DrainRequested | KillRequested):
            connected(self.workers().values(), event.name)
            return self.cluster_of(event.name)
        if isinstance(event, JobSaved | Undeliverable | CancelRequested | ResumeRequested):
            return self.cluster_with(event.job)
        if isinstance(event, DeleteRequested):
            for pool in self._pools:
                jobs.check_unused(pool, event.job, event.step)
        if isinstance(event, Submitted) and self._begins_at_once(event.job):
            return None
        return self.home

    def _begins_at_once(self, job: Job) -> bool:
        """Whether a job that is submitted does not go to the queue.

        Raises:
            RequestRefused: it has to, and too many run.
        """
        room = len(self._pools) < MOST_POOLS
        if job.terms.by_hand and not room:
            raise RequestRefused(
                f"{MOST_POOLS} jobs run already", remedy="wait for one to end, or cancel one"
            )
        return job.terms.by_hand or (room and self.home.job is None and resumes_in_pool(job))

    def _place(self, message: m.Register, now: float) -> ClusterState:
        """The cluster in which a worker registers; others that have it, or expect it, lose it."""
        place = place_of(message, self._pools) or self.home
        for before in self.all_clusters():
            known = before.workers.get(message.name)
            if before is place or known is None:
                continue
            if known.state not in GONE:
                gone = WorkerLost(
                    name=message.name, incarnation=known.incarnation, reason=AGAIN, farewell=True
                )
                self._pass(before, gone, now)
            if message.name not in before.run.roster:
                before.workers.pop(message.name, None)
            place.workers.setdefault(message.name, known)
        return place

    # --- places of workers and jobs ----------------------------------------------------------

    def all_clusters(self) -> list[ClusterState]:
        """The home cluster, then those of pools in the order in which they began."""
        return [self.home, *self._pools]

    def clusters(self) -> list[ClusterState]:
        """Return all clusters, those with an active job first."""
        return sorted(self.all_clusters(), key=lambda cluster: cluster.job is None)

    @property
    def cluster(self) -> ClusterState:
        """The cluster with the job that has been active for the longest time; else that at home."""
        return self.clusters()[0]

    def active(self) -> list[Job]:
        """The active jobs, in the order in which they began."""
        return [one.job for one in self.clusters() if one.job is not None]

    def cluster_of(self, name: str) -> ClusterState:
        """The cluster to which a worker belongs; that at home for an unknown one.

        A worker that has moved is gone where it was before.
        """
        known = [one for one in self.all_clusters() if name in one.workers]
        there = (one for one in known if one.workers[name].state not in GONE)
        return next(there, known[-1] if known else self.home)

    def cluster_with(self, job: str) -> ClusterState:
        """The cluster in which a job is active; that at home for any other."""
        pools = (one for one in self._pools if one.job is not None and one.job.id == job)
        return next(pools, self.home)

    def workers(self) -> dict[str, Worker]:
        """Every known worker by name."""
        names = dict.fromkeys(name for one in self.all_clusters() for name in one.workers)
        return {name: self.cluster_of(name).workers[name] for name in names}

    # --- giving workers to jobs ----------------------------------------------------------------

    def _allot(self, now: float) -> None:
        """Close pools whose job has ended, begin jobs and give them workers, until all is done."""
        while self._close_ended(now) or self._begin_next(now) or self._give_one(now):
            pass
        for pool in self._pools:
            for worker in surplus(pool):
                self._at_work, pool.now = pool, now
                admission.release(pool, worker, "evicted", SURPLUS)

    def _close_ended(self, now: float) -> bool:
        ended = next((one for one in self._pools if one.job is None), None)
        if ended is None:
            return False
        self._pools.remove(ended)
        self._keep_numbers_apart(ended)
        for worker in list(ended.workers.values()):
            elsewhere = self.cluster_of(worker.name).workers.get(worker.name)
            if elsewhere is None or elsewhere.state in GONE:
                _move(worker, ended, self.home, now)
        self._pass(self.home, Ticked(), now)
        return True

    def _begin_next(self, now: float) -> bool:
        home = self.home
        if not home.queue or not may_begin(home.queue[0], home, self._pools):
            return False
        self._open(home.queue.popleft(), now)
        return True

    def _give_one(self, now: float) -> bool:
        for pool in self._pools:
            worker = next_for(pool, self.home, now)
            if worker is not None and pool.job is not None:
                _move(worker, self.home, pool, now)
                self._at_work, pool.now = pool, now
                admission.prepare(pool, worker, pool.job)
                return True
        return False

    def _open(self, job: Job, now: float) -> None:
        """Begin a job, or resume it, on a pool without workers."""
        pool = self.home.fresh(job.generation)
        self._pools.append(pool)
        self._keep_numbers_apart()
        self._at_work, pool.now = pool, now
        jobs.activate(pool, job)
        self._pass(pool, Ticked(), now)

    def _keep_numbers_apart(self, *ended: ClusterState) -> None:
        """Tell each cluster the highest number of a generation; and home that others run."""
        runs = [one.run for one in (*self.all_clusters(), *ended)]
        highest = max(max(run.generation, run.highest) for run in runs)
        for cluster in self.all_clusters():
            cluster.run.highest = highest
        self.home.shared = bool(given(self._pools))

    # --- the other functions of a machine, for all clusters ---------------------------------------

    def hears(self, name: str, message: m.Message) -> bool:
        """Whether a registered worker's message counts, also for collectors of figures."""
        return counts(self.cluster_of(name), name, message)

    def next_deadline(self, now: float) -> float | None:
        """Return when `handle(Ticked(), ...)` must be called if nothing else happens before."""
        waits = [machine.next_deadline(one, now) for one in self.all_clusters()]
        waits += [tried_again_at(pool, self.home, now) for pool in self._pools]
        return min((at for at in waits if at is not None), default=None)

    def begin_again(self, *, given_up: bool) -> list[Job]:
        """Forget everything that a new process would not know, after an error in a cluster.

        Args:
            given_up: whether to give up the active job with which the error recurs.

        Returns:
            The jobs that have not ended, in their order, to be submitted again.
        """
        first = [one for one in self._pools if one is self._at_work]
        order = [*first, *(one for one in self._pools if one is not self._at_work)]
        active: list[Job] = [one.job for one in order if one.job is not None]
        self._keep_numbers_apart()
        self._pools, self._at_work = [], self.home
        self.home.queue.extendleft(reversed([job for job in active if job.state not in ENDED]))
        return machine.begin_again(self.home, given_up=given_up)

    def check_invariants(self) -> None:
        """Raise AssertionError when it is inconsistent."""
        living: list[str] = []
        for cluster in self.all_clusters():
            cluster.check_invariants()
            workers = cluster.workers  # the store may name a worker in two jobs
            living += (n for n in cluster.living() if workers[n].incarnation != NEVER_HEARD)
        assert len(set(living)) == len(living), "a worker belongs to two jobs"
        assert not (given(self._pools) and self.home.job), "a job takes all workers, and not all"
        for cluster in self.all_clusters():
            job = cluster.job
            for one in cluster.workers.values() if job is not None else ():
                if one.state in GONE | _WITHOUT_WORK or one.incarnation == NEVER_HEARD:
                    continue
                assert job is not None, "it was there a line before"
                own = job.id if job.terms.by_hand else ""
                assert one.registration.joined == own, f"{one.name} has a job of others"
        active = [job.id for job in self.active()]
        assert len(set(active)) == len(active), "a job is active twice"

    def explain(self) -> str:
        """Why the first active job does not advance right now; empty when it does."""
        return machine.explain(self._pools[0] if self._pools else self.home)

    def explanations(self) -> dict[str, str]:
        """Why each active job does not advance right now, by its id."""
        return {
            one.job.id: machine.explain(one) for one in self.all_clusters() if one.job is not None
        }

    def explain_queue(self) -> str:
        """Why the first job of the queue has not begun; empty when none is queued."""
        return why_not_begun(self.home, self._pools)


def _move(worker: Worker, source: ClusterState, to: ClusterState, now: float) -> None:
    """Move a worker's record; from now on the other cluster watches it."""
    del source.workers[worker.name]
    source.detector.forget(worker.name)
    to.workers[worker.name] = worker
    if worker.state not in GONE:
        to.detector.watch(worker.name, now)


MOST_POOLS: Final = 32
"""Most jobs that run at the same time."""

SURPLUS: Final = "its job has as many workers as it takes"

_OF_NO_USE: Final = GONE | {WorkerState.INCOMPATIBLE, WorkerState.ISOLATED}
_WITHOUT_WORK: Final = frozenset({WorkerState.IDLE, WorkerState.INCOMPATIBLE})
_TRAINS: Final = frozenset({WorkerState.RUNNING, WorkerState.FINISHED})


def given(pools: Sequence[ClusterState]) -> list[ClusterState]:
    """The pools that are given idle workers."""
    return [pool for pool in pools if pool.job is None or not pool.job.terms.by_hand]


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
    if job is None or job.state not in GOES_ON or job.terms.by_hand:
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
    if job is None or job.terms.by_hand:
        return None
    offered = idle(home) if lacking(pool) else []
    if job.terms.has_servers and job.state in GOES_ON:
        offered += idle(home, serves=True)
    known = {*job.roster, *job.checkpoint_holders}
    free = [
        one
        for one in offered
        if _set_aside_until(pool, one, now) is None and not instructions.why_not(job, one)
    ]
    return min(free, key=lambda one: one.name not in known, default=None)


def tried_again_at(pool: ClusterState, home: ClusterState, now: float) -> float | None:
    """Return when the next idle worker set aside for the pool's job may be tried again."""
    if not lacking(pool):
        return None
    times = (_set_aside_until(pool, one, now) for one in idle(home))
    return min((at for at in times if at is not None), default=None)


def _set_aside_until(pool: ClusterState, worker: Worker, now: float) -> float | None:
    aside = pool.set_aside.get(worker.name)
    if aside is None or now >= aside.until or aside.pid != worker.registration.pid:
        return None
    return aside.until


def surplus(pool: ClusterState) -> list[Worker]:
    """Ready workers beyond the number of a job all of whose members train."""
    job = pool.job
    if job is None or job.terms.by_hand:
        return []
    whole = len(pool.run.roster) - job.servers >= job.terms.workers
    trains = pool.run.phase is GenerationState.RUNNING and whole
    if not trains or any(one.state not in _TRAINS for one in pool.members()):
        return []
    ready = (one for one in pool.workers.values() if one.state is WorkerState.READY)
    return [one for one in ready if not one.serves]


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
    if not job.terms.workers or home.job is not None or len(pools) >= MOST_POOLS:
        return False
    if not given(pools):
        return True
    served = not job.terms.has_servers or bool(idle(home, serves=True))
    return served and len(idle(home)) >= job.terms.workers


def why_not_begun(home: ClusterState, pools: Sequence[ClusterState]) -> str:
    """Why the first job of the queue has not begun, in words; empty if none is queued."""
    if not home.queue:
        return ""
    job, active = home.queue[0], [home.job] if home.job is not None else []
    active += [pool.job for pool in given(pools) if pool.job is not None]
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
