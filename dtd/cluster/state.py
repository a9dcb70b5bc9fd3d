"""The coordinator's state: workers, the active job, the queue and the job's current generation.

The state consists of small records.  `dtd.cluster` dispatches on it, and `admission`,
`forming`, `running`, `ending` and `jobs` change it.  This module also has the queries that they
share.  No decisions here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

from dtd.cluster.events import Effect, Incident, Send
from dtd.cluster.generation.states import has
from dtd.cluster.records import Job, SetAside, Worker
from dtd.cluster.run import EndingTimes, Run, SaveOrders, Setbacks, WaitingTimes
from dtd.cluster.transitions import (
    AVAILABLE,
    ENDED,
    GENERATION,
    GONE,
    JOB,
    MEMBERS,
    WORKER,
    GenerationAction,
    GenerationEvent,
    GenerationState,
    JobAction,
    JobEvent,
    JobState,
    Table,
    WorkerAction,
    WorkerEvent,
    WorkerState,
)
from dtd.cluster.workers.detector import Detector, StragglerWatch
from dtd.cluster.workers.links import Links
from dtd.errors import ImpossibleTransition
from dtd.wire import messages as m

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)
A = TypeVar("A", bound=StrEnum)

WARMING_SILENCE_S = 30.0
FRUITFUL_STEPS = 3
"""A generation that commits at least this many steps has made progress."""
FRUITFUL_S = 600.0
"""So has one that runs a launched script, whose steps nobody sees, for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorIdentity:
    """The identity that this coordinator announces.

    Attributes:
        version: its dtd release; workers of another release are refused, unless it is empty.
        host: name of its host, for messages.
    """

    version: str = ""
    host: str = ""


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """Everything on which the coordinator bases its decisions.

    Attributes:
        heartbeat_interval_s, heartbeat_timeout_s: the values sent to workers.
        detector: how long each worker has been silent.
        identity: the identity that this coordinator announces.
        workers: every known worker by name, including those that are gone (bounded).
        warming_since: when each warming worker started its warm-up.
        job: the active job, if any.
        queue: jobs waiting to become active.
        shared: whether jobs run on parts of the cluster (`dtd.cluster.several_jobs.pools`), so that
            none of the queue becomes active here.
        run: the generation in which the job runs.
        setbacks: repeated failures that prevent the job's progress.
        waiting: conditions of the next generation.
        ending: deadlines of a generation that is ending.
        set_aside: by name, workers on which the job's code has failed
            (`dtd.cluster.workers.isolation`).
        verdict_by: when the job fails if only such workers are present.
        links: pairs of workers that cannot reach each other.
        vouched: members of the newest known generation that have registered without having left it.
        saving: which workers write the job's last state, or the one that they would leave with.
        straggler: which worker slows the others down.
        now: time of the current event, on the coordinator's clock.
        impossible: a requested transition that no table has; empty if there was none.
        effects: those of the current event; the clusters of several jobs add to one list.
    """

    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    detector: Detector = field(init=False)
    identity: CoordinatorIdentity = field(default_factory=CoordinatorIdentity)
    workers: dict[str, Worker] = field(default_factory=dict)
    warming_since: dict[str, float] = field(default_factory=dict)
    job: Job | None = None
    queue: deque[Job] = field(default_factory=deque)
    shared: bool = False
    run: Run = field(default_factory=Run)
    setbacks: Setbacks = field(default_factory=Setbacks)
    waiting: WaitingTimes = field(default_factory=WaitingTimes)
    ending: EndingTimes = field(default_factory=EndingTimes)
    set_aside: dict[str, SetAside] = field(default_factory=dict)
    verdict_by: float | None = None
    links: Links = field(default_factory=Links)
    vouched: set[str] = field(default_factory=set)
    saving: SaveOrders | None = None
    straggler: StragglerWatch = field(default_factory=StragglerWatch)
    now: float = 0.0
    impossible: str = ""
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin to listen for workers."""
        self.detector = Detector(
            timeout_s=self.heartbeat_timeout_s, tick_s=self.heartbeat_interval_s
        )

    def fresh(self, highest: int) -> ClusterState:
        """A cluster without workers and jobs, of the same coordinator.

        Args:
            highest: the highest number of a generation that is known.
        """
        return ClusterState(
            heartbeat_interval_s=self.heartbeat_interval_s,
            heartbeat_timeout_s=self.heartbeat_timeout_s,
            identity=self.identity,
            run=Run(highest=highest),
            now=self.now,
            effects=self.effects,
        )

    # --- transitions -----------------------------------------------------------------------

    def move_worker(self, worker: Worker, event: WorkerEvent) -> None:
        """Apply an event to a worker.

        Raises:
            ImpossibleTransition: the event cannot happen in the worker's state.
        """
        worker.state, action = self._take(WORKER, worker.state, event)
        if action is WorkerAction.BEGIN_WARMING:
            self._begin_warming(worker)
        elif action is WorkerAction.END_WARMING:
            self.warming_since.pop(worker.name, None)
            self.detector.watch(worker.name, self.now)
            worker.ready_since = self.now
        elif action is WorkerAction.WATCH:
            self.detector.watch(worker.name, self.now)
        elif action is WorkerAction.CLEAR_REASON:
            worker.reason = ""
        elif action is WorkerAction.FORGET:
            self._forget(worker)

    def move_generation(self, event: GenerationEvent) -> None:
        """Apply an event to the current generation.

        Raises:
            ImpossibleTransition: the event cannot happen in the generation's state.
        """
        self.run.phase, action = self._take(GENERATION, self.run.phase, event)
        if action is GenerationAction.BEGIN:
            self.run.has_run, self.run.advanced_at = False, None
        elif action is GenerationAction.HAS_RUN:
            self.run.has_run = True
        elif action is GenerationAction.ADVANCES:
            self.run.has_run, self.run.advanced_at = True, self.now
        elif action is GenerationAction.FORGET:
            self.run.decision = self.ending.freeze_by = None
            self.run.roster = []
            self.run.has_run = self.run.lost_member = False

    def move_job(self, job: Job, event: JobEvent) -> None:
        """Apply an event to a job.

        Raises:
            ImpossibleTransition: the event cannot happen in the job's state.
        """
        job.state, action = self._take(JOB, job.state, event)
        if action is JobAction.CLEAR_VERDICT:
            job.verdict = ""

    def _take(self, table: Table[S, E, A], state: S, event: E) -> tuple[S, A]:
        """The next state and the action; an impossible event also violates the invariants."""
        try:
            return table.take(state, event)
        except ImpossibleTransition as error:
            self.impossible = error.message
            raise

    def _begin_warming(self, worker: Worker) -> None:
        self.warming_since[worker.name] = self.now
        patience_s = max(WARMING_SILENCE_S, self.heartbeat_timeout_s)
        self.detector.watch(worker.name, self.now, timeout_s=patience_s)

    def _forget(self, worker: Worker) -> None:
        worker.holdings.forget()
        worker.liveness.forget()
        worker.reconnection.returning = False
        self.detector.forget(worker.name)
        self.warming_since.pop(worker.name, None)

    # --- queries ---------------------------------------------------------------------------

    def members(self) -> list[Worker]:
        """The roster's workers in rank order."""
        return [self.workers[name] for name in self.run.roster]

    def running_beats(self) -> dict[str, m.Heartbeat]:
        """The running members' last heartbeats, by name."""
        return {
            worker.name: worker.liveness.heartbeat
            for worker in self.members()
            if worker.liveness.heartbeat is not None and worker.state is WorkerState.RUNNING
        }

    def not_frozen(self) -> list[str]:
        """Names of the members that still take part in the generation."""
        return [worker.name for worker in self.members() if worker.state in MEMBERS]

    def available(self) -> list[Worker]:
        """Workers that may become members of a new generation.

        This includes a worker that is leaving: it is still present only because no other worker
        holds the newest state, which it must pass on.
        """
        return [w for w in self.workers.values() if w.state in AVAILABLE]

    def living(self) -> set[str]:
        """Names of all workers that are not gone."""
        return {worker.name for worker in self.workers.values() if worker.state not in GONE}

    def survivors(self, job: Job) -> list[Worker]:
        """Available workers that hold in memory the state in which the last generation ended.

        A member that did not receive that generation's starting state holds only an older one.
        """
        start = (job.start_generation, job.start_step)
        return [
            worker
            for worker in self.available()
            if worker.name in job.roster
            and worker.holdings.held is not None
            and worker.holdings.held.where == "memory"
            and max(
                (worker.holdings.held.generation, worker.holdings.held.step),
                worker.holdings.prepared,
            )
            >= start
            and worker.holdings.held.step >= job.rounds.begin(job.step)
        ]

    def remembers(self, job: Job, worker: Worker) -> bool:
        """Whether it has the newest state in memory, as far as is known."""
        if worker.reconnection.returning:  # it has not reported its state yet
            return True
        if worker.state is WorkerState.FORMING:
            # A coordinator that has been restarted does not know what its members hold.
            unknown = worker.holdings.held is None
            return unknown or has(worker, (job.start_generation, job.start_step))
        if worker.state in (WorkerState.RUNNING, WorkerState.FINISHED):
            return True
        return worker in self.survivors(job)

    def missing(self, job: Job) -> list[str]:
        """Members of the job's last generation that may still reconnect with its state."""
        return [
            name
            for name in job.roster
            if name not in self.workers or self.workers[name].state is WorkerState.LOST
        ]

    def withdraw(self, job: Job) -> None:
        """Discard the decision that is being stored.

        No worker has been told of it, so this has no other consequence.  The number of the
        generation stays used.
        """
        decision, self.run.decision = self.run.decision, None
        if decision is not None:
            for name, value in decision.before.items():
                setattr(job, name, value)

    def fence(self, job: Job) -> None:
        """Record that the job's newest generation commits no further step.

        A decision that is still being stored was made after the last generation had stopped, and
        is not affected.
        """
        if self.run.decision is None:
            job.fenced = True

    def advance(self, step: int) -> None:
        """Reset the setbacks that a newly committed step disproves.

        A step that had been committed before, and was lost with all its holders, proves nothing
        about crashes.
        """
        self.setbacks.no_progress_generations = 0
        self.run.lost_member = False
        if step > self.setbacks.crash_step:
            self.setbacks.crash_generations = self.setbacks.crash_step = 0
            self.setbacks.crashed_workers.clear()

    def start_afresh(self) -> None:
        """Forget all setbacks."""
        self.setbacks = Setbacks()
        self.run.lost_member = False

    def note_brevity(self, job: Job) -> None:
        """Count the generation that has just ended if it was brief.

        A generation that commits only a step or two before it breaks does not justify the cost of
        forming its ring.  One that ended at a step boundary, as planned, is not counted.
        """
        if job.step - job.start_step >= FRUITFUL_STEPS:
            self.setbacks.brief_generations = 0
        elif self.ending.recovery is not None and not self.ending.recovery.at_boundary:
            self.setbacks.brief_generations += 1

    def crashed(self, name: str, step: int) -> None:
        """A worker died or hung while the step after `step` was computed."""
        self.setbacks.crashed_workers.append(name)
        self.run.lost_member = True
        self.setbacks.crash_step = max(self.setbacks.crash_step, step)

    def slept(self, gap_s: float) -> None:
        """Postpone deadlines by the time that this process did not run.

        Messages that arrived in that time have not been read yet.
        """
        if not gap_s:
            return
        self.warming_since = {name: at + gap_s for name, at in self.warming_since.items()}
        self.waiting.slept(gap_s)
        self.ending.slept(gap_s)
        if self.verdict_by is not None:
            self.verdict_by += gap_s
        if self.saving is not None:
            self.saving.slept(gap_s)

    def forget_all(self) -> None:
        """Return to the state at process start, except for the numbers already assigned."""
        fresh = self.fresh(max(self.run.generation, self.run.highest))
        for field_ in fields(ClusterState):
            setattr(self, field_.name, getattr(fresh, field_.name))

    def emit(self, effect: Effect) -> None:
        """Add an effect of the current event."""
        self.effects.append(effect)

    def send(self, name: str, message: m.Message) -> None:
        """Add the effect that sends a message to a worker."""
        self.emit(Send(name=name, message=message))

    def incident(
        self,
        kind: str,
        message: str,
        *,
        worker: str = "",
        step: int = 0,
        job: str = "",
        **details: Any,
    ) -> None:
        """Add an incident for the operator, with details.

        It concerns the active job unless `job` names another one.
        """
        self.emit(
            Incident(
                kind=kind,
                message=message,
                job=job or (self.job.id if self.job is not None else ""),
                worker=worker,
                generation=self.run.generation if self.run.roster else 0,
                step=step,
                details=details,
            )
        )

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent."""
        assert not self.impossible, self.impossible
        assert len(set(self.run.roster)) == len(self.run.roster)
        members = {name for name, w in self.workers.items() if w.state in MEMBERS}
        if self.run.phase in (GenerationState.FORMING, GenerationState.RUNNING):
            assert members == set(self.run.roster), (members, self.run.roster)
        else:
            assert members <= set(self.run.roster), (members, self.run.roster)
        if self.job is None:
            assert self.run.phase is GenerationState.NONE
        else:
            assert self.job.state not in ENDED
            assert self.job.state is not JobState.SAVING or self.saving is not None
        if self.run.decision is not None:
            assert self.run.phase is GenerationState.NONE
            assert self.job is not None
            assert self.job.state is JobState.FORMING
        assert all(self.workers[n].state is WorkerState.WARMING for n in self.warming_since)


def most_workers(job: Job) -> int:
    """The job's `elastic.max_workers` or `elastic.workers`, at most the size of a roster."""
    return min(job.terms.max_workers, job.terms.most or m.MAX_WORLD, m.MAX_WORLD)
