"""Several jobs at once: the home cluster, and one more for each job on workers of its own.

    an event -> the cluster that it concerns -> all others look at the clock -> workers are given

Each cluster is a whole `ClusterState` with one job, and all rules of `dtd.cluster.machine` hold
within it; none knows of the others.  This file passes events on, moves idle workers, and keeps the
numbers of generations apart.  A worker moves only while it has no job: its record goes from one
cluster to the other, its connection stays.  The rules:

* `dtd.cluster.several_jobs.allocation` gives each job a number of workers, from its least to its
  most;
* a worker that has left a pool, or has just come, goes to a job that has fewer than its number;
* jobs begin in the order of the queue; the first one waits until its least idle, or no other job
  is active, and nothing overtakes it;
* a job that has more than its number, while others have fewer, lets workers leave at a step
  boundary: once that has been so for `STEADY_S`, and not again within `REST_S`; what a job has
  beyond its most is released;
* a job with `elastic.by_hand` begins at once, whatever else runs, and its workers are the processes
  that register for it: they get no other job, and it gets no other worker.

Without jobs that name `elastic.workers` or `elastic.by_hand` there is the home cluster alone.
Pure: events and a clock value in, effects out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dtd.cluster import jobs, machine
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
from dtd.cluster.run import Run
from dtd.cluster.several_jobs import allocation
from dtd.cluster.several_jobs.allocation import Claim
from dtd.cluster.several_jobs.giving import (
    fits,
    has,
    idle,
    is_short,
    may_begin,
    may_leave,
    next_for,
    on_their_way,
    place_of,
    room,
    sharing,
    surplus,
    tried_again_at,
    tries_origin,
    why_not_begun,
)
from dtd.cluster.state import ClusterState, CoordinatorIdentity
from dtd.cluster.transitions import ENDED, GOES_ON, GONE, JobState, WorkerState
from dtd.cluster.workers import admission
from dtd.cluster.workers.registration import NEVER_HEARD
from dtd.errors import RequestRefused
from dtd.wire import messages as m

AGAIN: Final = "the worker registered again"
SURPLUS: Final = "its job has as many workers as it takes"
STEADY_S: Final = 5.0
"""How long jobs must have had more and fewer workers than their numbers before any are moved: a
process that starts again is back by then."""
REST_S: Final = 30.0
"""How long a job that has given workers away gives no more."""

_WITHOUT_WORK: Final = frozenset({WorkerState.IDLE, WorkerState.INCOMPATIBLE})


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
        self._uneven_since: float | None = None
        self._gave_at: dict[str, float] = {}

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
        has_room = room(self._pools) > 0
        if job.terms.by_hand and not has_room:
            raise RequestRefused(
                f"{len(self._pools)} jobs run already", remedy="wait for one to end, or cancel one"
            )
        return job.terms.by_hand or (has_room and self.home.job is None and resumes_in_pool(job))

    def _place(self, message: m.Register, now: float) -> ClusterState:
        """The cluster in which a worker registers; others that have it, or expect it, lose it."""
        place = place_of(message, self._pools) or self.home
        for before in self.all_clusters():
            known = before.workers.get(message.name)
            if before is place or known is None:
                continue
            known.moving_since = None  # it has arrived
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
        while (
            self._close_ended(now)
            or self._give_one(now)
            or self._begin_next(now)
            or self._give_one(now, tries=True)
        ):
            pass
        for pool in self._pools:
            for worker in surplus(pool):
                self._at_work, pool.now = pool, now
                admission.release(pool, worker, "evicted", SURPLUS)
        self._move_workers(now)

    def _close_ended(self, now: float) -> bool:
        ended = next((one for one in self._pools if one.job is None), None)
        if ended is None:
            return False
        self._pools.remove(ended)
        active = [one.job.id for one in self._pools if one.job is not None]
        self._gave_at = {job: at for job, at in self._gave_at.items() if job in active}
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

    def _give_one(self, now: float, *, tries: bool = False) -> bool:
        """Give an idle worker to a job that has fewer than its number, the neediest first.

        With `tries` to one that starts from a checkpoint that none of its workers has.
        """
        pools = [pool for pool in self._pools if pool.job is not None]
        if not any(one.state is WorkerState.IDLE for one in self.home.workers.values()):
            return False
        number = self._numbers(now)
        for pool in sorted(pools, key=_neediest):
            lacks = tries_origin(pool) if tries else has(pool) < _number_of(pool, number)
            worker = next_for(pool, self.home, now, lacks=lacks)
            if worker is not None and pool.job is not None:
                _move(worker, self.home, pool, now)
                self._at_work, pool.now = pool, now
                admission.prepare(pool, worker, pool.job)
                return True
        return False

    def claims(self, now: float) -> list[Claim]:
        """The jobs that share the workers: the running ones, then the queue in its order."""
        without = idle(self.home)
        coming = self._coming(now)
        found = [
            _claim(
                one.job,
                has=has(one),
                gives=len(self._spare(one, now)),
                fit=coming + sum(fits(one, one.job, worker, now) for worker in without),
            )
            for one in self._pools
            if one.job is not None and one.job.state in GOES_ON and not one.job.terms.by_hand
        ]
        places = room(self._pools) if self.home.job is None else 0
        served = bool(idle(self.home, serves=True))
        first = itertools.takewhile(
            lambda job: job.terms.least and (served or not job.terms.has_servers), self.home.queue
        )
        return found + [_claim(job, queued=True) for job in itertools.islice(first, max(0, places))]

    def _numbers(self, now: float) -> dict[str, int]:
        """How many workers each of these jobs gets."""
        claims = self.claims(now)
        there = sum(one.has for one in claims) + len(idle(self.home)) + self._coming(now)
        return allocation.shares(claims, there)

    def _coming(self, now: float) -> int:
        """Return the number of workers that are on their way from one job to another."""
        return sum(
            one.state not in GONE or now < (one.moving_since or 0.0) + REST_S
            for one in on_their_way(self._pools)
        )

    def _spare(self, pool: ClusterState, now: float) -> list[Worker]:
        """The workers that may leave a job for another one, in the order in which they would."""
        job = pool.job
        if job is None or now < self._gave_at.get(job.id, -REST_S) + REST_S:
            return []
        return may_leave(pool, job)

    def _move_workers(self, now: float) -> None:
        """Let workers leave jobs that have more than their number, for those that have fewer."""
        if len(self._pools) + len(self.home.queue) < 2:
            self._uneven_since = None
            return
        moves = allocation.plan_moves(self.claims(now), len(idle(self.home)), self._coming(now))
        since = now if self._uneven_since is None else self._uneven_since
        self._uneven_since = since if moves else None
        if not moves or now < since + STEADY_S:
            return
        self._uneven_since = None
        for source in dict.fromkeys(move.source for move in moves):
            pool, leaving = self.cluster_with(source), dict[str, str]()
            for move in moves:
                to = self._fits(move.to, now)
                fit = (one.name for one in self._spare(pool, now) if to(one))
                free = (name for name in fit if name not in leaving)
                if move.source == source:
                    leaving |= dict.fromkeys(itertools.islice(free, move.count), move.why)
            if leaving:
                self._gave_at[source], self._at_work, pool.now = now, pool, now
                admission.move_away(pool, leaving)

    def _fits(self, job_id: str, now: float) -> Callable[[Worker], bool]:
        """Return whether a worker could work for a job, as a function of the worker."""
        pool = self.cluster_with(job_id)
        job = pool.job if pool is not self.home else None
        found = job or next(one for one in self.home.queue if one.id == job_id)
        return lambda one: fits(pool, found, one, now)

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
        self.home.shared = bool(sharing(self._pools))

    # --- the other functions of a machine, for all clusters ---------------------------------------

    def hears(self, name: str, message: m.Message) -> bool:
        """Whether a registered worker's message counts, also for collectors of figures."""
        return counts(self.cluster_of(name), name, message)

    def next_deadline(self, now: float) -> float | None:
        """Return when `handle(Ticked(), ...)` must be called if nothing else happens before."""
        waits = [machine.next_deadline(one, now) for one in self.all_clusters()]
        waits += [tried_again_at(pool, self.home, now) for pool in self._pools if is_short(pool)]
        if self._uneven_since is not None:
            waits.append(self._uneven_since + STEADY_S)
        waits += [at + REST_S for at in self._gave_at.values() if at + REST_S > now]
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
        assert not (sharing(self._pools) and self.home.job), "a job takes all workers, and not all"
        for cluster in self.all_clusters():
            job = cluster.job
            if job is None:
                continue
            own = job.id if job.terms.by_hand else ""
            for one in cluster.workers.values():
                if one.state in GONE | _WITHOUT_WORK or one.incarnation == NEVER_HEARD:
                    continue
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

    def allotments(self) -> dict[str, dict[str, Any]]:
        """How many workers each of the jobs that share them has, wants, and why no more."""
        claims, numbers = self.claims(self.home.now), self._numbers(self.home.now)
        return {
            one.job: {
                "least": one.least,
                "most": one.most,
                "priority": one.priority,
                "workers": one.has,
                "why": allocation.why_no_more(one, claims, numbers),
            }
            for one in claims
            if not one.queued
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


def resumes_in_pool(job: Job) -> bool:
    """Whether the job, read from the store, ran in a pool when the coordinator ended."""
    return bool(job.terms.least) and job.state is not JobState.QUEUED


def in_order(unfinished: Sequence[Job]) -> list[Job]:
    """The jobs of a store in the order in which a coordinator takes them up: the begun ones first.

    One that was submitted later may have begun before others, if the store failed in between: it
    trains, and must not wait for jobs that would be given its workers.
    """
    return sorted(unfinished, key=lambda job: job.state is JobState.QUEUED)


def _claim(job: Job, **more: Any) -> Claim:
    terms = job.terms
    return Claim(job=job.id, least=terms.least, most=terms.most, priority=terms.priority, **more)


def _number_of(pool: ClusterState, numbers: Mapping[str, int]) -> int:
    return numbers.get(pool.job.id, 0) if pool.job is not None else 0


def _neediest(pool: ClusterState) -> tuple[bool, int, int]:
    """Sort key of the jobs that get workers: those below their least first."""
    assert pool.job is not None, "a job ended before workers were given"
    terms, number = pool.job.terms, has(pool)
    return number >= terms.least, -terms.priority, number
