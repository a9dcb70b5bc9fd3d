"""What the coordinator knows: workers, the job, the queue, the run of the job.

The state that `dtd.core.membership` dispatches on and that `admission`, `forming`, `running`,
`ending` and `jobs` change, in small records, with the few questions they all ask of it.  No
decisions here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

from dtd.core.membership.events import Effect, Incident, Send
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.save_orders import SaveOrders
from dtd.core.membership.state_records import (
    CoordinatorIdentity,
    EndingTimes,
    Isolation,
    Run,
    Setbacks,
    Trust,
    WaitingTimes,
)
from dtd.core.membership.transitions import (
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
from dtd.core.observe.detector import Detector
from dtd.core.observe.straggler import StragglerWatch
from dtd.errors import ImpossibleTransition
from dtd.wire import messages as m

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)
A = TypeVar("A", bound=StrEnum)

WARMING_SILENCE_S = 30.0
FRUITFUL_STEPS = 3
"""A generation that has committed so many has not come to nothing."""


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """Everything the coordinator decides on.

    Attributes:
        heartbeat_interval_s, heartbeat_timeout_s: that workers are told.
        detector: who has been silent for how long.
        identity: what this coordinator says of itself.
        epoch: of the store; 0 where none is known.  It is beyond that of `identity` once the store
            was found to have gone back.
        workers: every known worker by name, the gone ones too (bounded).
        warming_since: when each warming worker began.
        job: the one active job.
        queue: jobs that wait for their turn.
        run: the generation that the job runs in.
        setbacks: what keeps the job from getting on.
        waiting: what the next generation waits for.
        ending: deadlines of a generation that ends.
        isolation: workers and links on which the job does not build.
        trust: what workers say, weighed against what others say.
        saving: who writes the job's last state, while it is to end.
        straggler: which worker holds the others up.
        now: the clock of the event at hand.
        impossible: a transition that was asked for and that there is not; empty while all is well.
        effects: of the event at hand.
    """

    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    detector: Detector
    identity: CoordinatorIdentity = field(default_factory=CoordinatorIdentity)
    epoch: int = 1
    workers: dict[str, Worker] = field(default_factory=dict)
    warming_since: dict[str, float] = field(default_factory=dict)
    job: Job | None = None
    queue: deque[Job] = field(default_factory=deque)
    run: Run = field(default_factory=Run)
    setbacks: Setbacks = field(default_factory=Setbacks)
    waiting: WaitingTimes = field(default_factory=WaitingTimes)
    ending: EndingTimes = field(default_factory=EndingTimes)
    isolation: Isolation = field(default_factory=Isolation)
    trust: Trust = field(default_factory=Trust)
    saving: SaveOrders | None = None
    straggler: StragglerWatch = field(default_factory=StragglerWatch)
    now: float = 0.0
    impossible: str = ""
    effects: list[Effect] = field(default_factory=list)

    # --- transitions -----------------------------------------------------------------------

    def move_worker(self, worker: Worker, event: WorkerEvent) -> None:
        """Something happens to a worker.

        Raises:
            ImpossibleTransition: that cannot happen in its state.
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
        """Something happens to the current generation.

        Raises:
            ImpossibleTransition: that cannot happen in its state.
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
        """Something happens to a job.

        Raises:
            ImpossibleTransition: that cannot happen in its state.
        """
        job.state, action = self._take(JOB, job.state, event)
        if action is JobAction.CLEAR_VERDICT:
            job.verdict = ""

    def _take(self, table: Table[S, E, A], state: S, event: E) -> tuple[S, A]:
        """What follows in a table; what is not in it is remembered by the invariants."""
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

    # --- questions -------------------------------------------------------------------------

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
        """Members that still take part in the generation."""
        return [worker.name for worker in self.members() if worker.state in MEMBERS]

    def available(self) -> list[Worker]:
        """Workers that a new generation may have.

        One that is leaving and still here alone holds the newest state, and must hand it over.
        """
        return [w for w in self.workers.values() if w.state in AVAILABLE]

    def living(self) -> set[str]:
        """Names of all workers that are not gone."""
        return {worker.name for worker in self.workers.values() if worker.state not in GONE}

    def survivors(self, job: Job) -> list[Worker]:
        """Available workers that remember where the job's last generation ended.

        One that was to receive that generation's state, and did not, remembers only older days.
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
            and worker.holdings.held.step + 1 >= job.step
        ]

    def missing(self, job: Job) -> list[str]:
        """Members of the job's last generation that may still come back with its state."""
        return [
            name
            for name in job.roster
            if name not in self.workers or self.workers[name].state is WorkerState.LOST
        ]

    def withdraw(self, job: Job) -> None:
        """What is being written down is not to be: nobody has heard of it, so nothing follows.

        Its number stays used.
        """
        decision, self.run.decision = self.run.decision, None
        if decision is not None:
            for name, value in decision.before.items():
                setattr(job, name, value)

    def fence(self, job: Job) -> None:
        """The job's newest generation commits nothing more.

        One that nobody has heard of was decided since the last one had stopped, and goes on.
        """
        if self.run.decision is None:
            job.fenced = True

    def advance(self, step: int) -> None:
        """A step is committed: what went wrong before did not keep the job from it.

        A step that was done before, and lost with everybody who remembered it, proves nothing.
        """
        self.setbacks.no_progress_generations = 0
        self.run.lost_member = False
        if step > self.setbacks.crash_step:
            self.setbacks.crash_generations = self.setbacks.crash_step = 0
            self.setbacks.crashed_workers.clear()

    def start_afresh(self) -> None:
        """Nothing that went wrong before counts."""
        self.setbacks = Setbacks()
        self.run.lost_member = False

    def note_brevity(self, job: Job) -> None:
        """A generation is over; one that ended at a step boundary as it should says nothing.

        What commits a step or two between two breaks is no progress worth the forming of rings.
        """
        if job.step - self.run.start_step >= FRUITFUL_STEPS:
            self.setbacks.brief_generations = 0
        elif self.ending.recovery is not None and not self.ending.recovery.at_boundary:
            self.setbacks.brief_generations += 1

    def crashed(self, name: str, step: int) -> None:
        """A worker died or hung while the step after `step` was computed."""
        self.setbacks.crashed_workers.append(name)
        self.run.lost_member = True
        self.setbacks.crash_step = max(self.setbacks.crash_step, step)

    def slept(self, gap_s: float) -> None:
        """This process did not run for a while: what others said meanwhile is yet to be read."""
        self.warming_since = {name: at + gap_s for name, at in self.warming_since.items()}
        if self.ending.freeze_by is not None:
            self.ending.freeze_by += gap_s

    def forget_all(self) -> None:
        """Be as at the start of a process; only what was given out stays given out."""
        fresh = ClusterState(
            heartbeat_interval_s=self.heartbeat_interval_s,
            heartbeat_timeout_s=self.heartbeat_timeout_s,
            detector=Detector(timeout_s=self.detector.timeout_s, tick_s=self.detector.tick_s),
            run=Run(generation=self.run.generation, highest_seen=self.run.highest_seen),
            identity=self.identity,
            epoch=self.epoch,
            now=self.now,
        )
        for field_ in fields(ClusterState):
            setattr(self, field_.name, getattr(fresh, field_.name))

    def emit(self, effect: Effect) -> None:
        """Add an effect of the event at hand."""
        self.effects.append(effect)

    def send(self, name: str, message: m.Message) -> None:
        """Add a message to a worker."""
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
        """Add something for an operator to read, with figures.

        It is about the active job unless another one is named.
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
        """Raise AssertionError when the books do not balance."""
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
            assert (self.job.state is JobState.SAVING) == (self.saving is not None)
        if self.run.decision is not None:
            assert self.run.phase is GenerationState.NONE
            assert self.job is not None
            assert self.job.state is JobState.FORMING
        assert all(self.workers[n].state is WorkerState.WARMING for n in self.warming_since)


def least_workers(job: Job) -> int:
    """The job's `elastic.min_workers`."""
    return int(job.spec["elastic"]["min_workers"])


def most_workers(job: Job) -> int:
    """The job's `elastic.max_workers`, within what a roster can hold."""
    return min(int(job.spec["elastic"]["max_workers"]), m.MAX_WORLD)
