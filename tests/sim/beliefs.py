"""Rules for what the coordinator may assume and decide, compared with what really happens.

The coordinator knows its workers only from messages, and its view is often outdated.  That is
permitted; relying on something that is untrue is not.  The rules, checked after each of its events:

* a generation is running only if every one of its ranks has joined it;
* a generation counts as stopped only if a member has left it, or the operator has said so;
* a worker counts as connected only while it has a connection, and as a member only while it is
  heard from;
* messages of one connection are sent in the order of their decisions, except for heartbeats;
* every connected member of a generation that ends, or of a job that stops, has been told so;
* no two neighbours of a ring have a link between them that is known to be bad;
* a generation is decided only when every connected worker with a state in memory has reported it;
* steps are given up, and newer checkpoints abandoned, only after their absent holders have been
  waited for, or when the operator says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from dtd.cluster.generation import branches
from dtd.cluster.generation.waiting import RESUME_WAIT_S
from dtd.cluster.records import Job
from dtd.cluster.run import Decision
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GenerationState, JobState, WorkerState
from dtd.cluster.workers.links import pair_of
from dtd.wire import messages as m
from tests.sim.lineage import Memory, require

CONNECTED = frozenset(WorkerState) - {
    *(WorkerState.DISCONNECTED, WorkerState.LOST, WorkerState.RELEASED, WorkerState.INCOMPATIBLE),
}
TAKES_PART = (WorkerState.FORMING, WorkerState.RUNNING)
SILENT_S = 10.0
"""Silence after which a member must not be considered running, unless its generation advances:
several heartbeat timeouts."""


class Beliefs:
    """The rules for successive coordinator processes.

    Args:
        remembered: the states of a job that living workers have in memory.
        trains: the generation in whose ring each worker is; 0 for none.
        resumed: jobs that no worker trains any more, according to the operator.
    """

    def __init__(
        self,
        *,
        remembered: Callable[[str], Iterable[Memory]],
        trains: Mapping[str, int],
        resumed: Collection[str],
    ) -> None:
        self._remembered = remembered
        self._trains = trains
        self._resumed = resumed
        self._joined: dict[tuple[str, int], set[int]] = {}
        self._told: dict[str, m.Freeze] = {}
        self._heard: dict[str, float] = {}
        self._to_say: dict[str, list[m.Message]] = {}
        self._started_s = 0.0
        self._waits_since: dict[str, float] = {}
        self._decided: dict[str, int] = {}
        self._waits_no_longer: dict[str, bool] = {}

    # --- events ----------------------------------------------------------------------------

    def started(self, now: float) -> None:
        """A coordinator starts, and no worker is connected to it."""
        self._told.clear()
        self._heard.clear()
        self._to_say.clear()
        self._started_s = now
        self._waits_since.clear()
        self._decided.clear()

    def connected(self, name: str) -> None:
        """A worker has a new connection, on which nothing was sent yet."""
        self._told.pop(name, None)
        self._to_say.pop(name, None)

    def heard(self, name: str, now: float) -> None:
        """A message of a worker has arrived."""
        self._heard[name] = now

    def says(self, name: str, message: m.Message) -> None:
        """A message is sent."""
        if isinstance(message, m.HeartbeatAck):
            return
        oldest = self._to_say[name].pop(0)
        require(oldest is message, "a message overtakes another one", name, message, oldest)

    def told(self, name: str, message: m.Message) -> None:
        """The coordinator decides to send a message to a connected worker."""
        if not isinstance(message, m.HeartbeatAck):
            self._to_say.setdefault(name, []).append(message)
        if isinstance(message, m.Freeze):
            self._told[name] = message

    def joined(self, assign: m.Assign) -> None:
        """A rank has learnt that all ranks have joined with the same state."""
        self._joined.setdefault((assign.job, assign.generation), set()).add(assign.rank)

    def waited_for(self, job: str, connected: Collection[str]) -> Callable[[str], bool]:
        """Whether the last decision about a job may be made without a worker.

        It may if the worker is absent and was waited for, or the operator decided not to wait.
        """
        here = set(connected)
        return lambda name: self._waits_no_longer.get(job, False) and name not in here

    # --- decisions of the coordinator --------------------------------------------------------

    def check(self, cluster: ClusterState, now: float, connected: Collection[str]) -> None:
        """The coordinator has handled an event.

        Args:
            cluster: of one job, or of those without one.
            now: the time.
            connected: workers with a connection.
        """
        for name, worker in cluster.workers.items():
            absent = worker.state in CONNECTED and name not in connected
            require(not absent, "a worker counts as connected that is not", name, worker.state)
            heard_at = self._heard.get(name, now) if worker.state in TAKES_PART else now
            heard_at = max(heard_at, cluster.run.advanced_at or heard_at)
            require(now - heard_at < SILENT_S, "a silent worker takes part", name)
        job = cluster.job
        if job is None:
            return
        if cluster.run.phase is not GenerationState.NONE:
            self._waits_since[job.id] = now
        self._check_generation(cluster, job)
        self._check_told(cluster, job)
        decision = cluster.run.decision
        if decision is not None and self._decided.get(job.id) != job.generation:
            self._decided[job.id] = job.generation
            self._check_decision(cluster, job, decision, now)

    def _check_generation(self, cluster: ClusterState, job: Job) -> None:
        ranks = self._joined.get((job.id, job.generation), set())
        if cluster.run.phase is GenerationState.RUNNING:
            everybody = len(ranks) >= len(cluster.run.roster)
            require(
                everybody, "a generation counts as running that not all have joined", job.id, ranks
            )
        if cluster.run.phase is GenerationState.FORMING and cluster.run.decision is None:
            self._check_links(cluster)
        if job.fenced and job.id not in self._resumed and cluster.run.decision is None:
            all_train = bool(job.roster) and all(
                self._trains.get(name) == job.generation for name in job.roster
            )
            require(not all_train, "a generation counts as stopped that nobody has left", job.id)

    def _check_links(self, cluster: ClusterState) -> None:
        ring = cluster.run.roster
        for one, other in zip(ring, [*ring[1:], *ring[:1]], strict=True):
            bad = one != other and pair_of(one, other) in cluster.links.bad
            require(not bad, "neighbours of a ring have a bad link", one, other)

    def _check_told(self, cluster: ClusterState, job: Job) -> None:
        """Check that members are told of an end; a member that is not told continues training."""
        phase = cluster.run.phase
        stops = phase is GenerationState.RUNNING and job.state is JobState.STOPPING
        if not stops and phase is not GenerationState.ENDING:
            return
        for member in cluster.members():
            known = self._told.get(member.name)
            told = known is not None and known.generation == cluster.run.generation
            heard = told or member.state not in TAKES_PART
            require(heard, "a member is not told that its generation ends", member.name)

    def _check_decision(
        self, cluster: ClusterState, job: Job, decision: Decision, now: float
    ) -> None:
        for memory in self._remembered(job.id):
            worker = cluster.workers.get(memory.name)
            silent = (
                worker is not None
                and worker.incarnation == memory.incarnation
                and worker.state is WorkerState.WARMING
                and worker.reconnection.returning
            )
            require(not silent, "a generation is decided before all have reported", memory.name)
        waited = now - self._waits_since.get(job.id, self._started_s) >= RESUME_WAIT_S
        self._waits_no_longer[job.id] = waited or job.id in self._resumed
        absent = _absent_holders(cluster, job, decision)
        excused = self._waits_no_longer[job.id] or not absent
        require(excused, "nobody waits for those who hold more", absent)


def _absent_holders(cluster: ClusterState, job: Job, decision: Decision) -> list[str]:
    """Absent workers that may hold a state that the decision gives up."""
    here = {worker.name for worker in cluster.available()}
    before, absent = decision.before, set[str]()
    if decision.lost > 0:
        lost = (WorkerState.LOST, None)
        states = {name: one.state for name, one in cluster.workers.items()}
        absent |= {name for name in before["roster"] if states.get(name) in lost}
    saved = (job.checkpoint_generation, job.checkpoint_step)
    left = branches.is_left(saved, branches.remembered(before["branches"]))
    if saved > (job.start_generation, job.start_step) and not left:
        absent |= set(job.checkpoint_holders) - here
    return sorted(absent)
