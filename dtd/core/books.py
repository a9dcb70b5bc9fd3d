"""What the coordinator knows: workers, the job, the queue, the current generation.

The state that `dtd.core.membership` dispatches on and that `admission`, `forming`, `running`,
`ending` and `jobs` change, with the few questions they all ask of it.  No decisions here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from dtd.core.detector import Detector
from dtd.core.incidents import Recovery
from dtd.core.links import Links
from dtd.core.membership_events import Effect, Incident, Job, Send, SetAside, Worker
from dtd.core.save_orders import SaveOrders
from dtd.core.straggler import StragglerWatch
from dtd.core.transitions import (
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
from dtd.errors import ImpossibleTransition
from dtd.wire import messages as m

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)
A = TypeVar("A", bound=StrEnum)

WARMING_SILENCE_S = 30.0
FRUITFUL_STEPS = 3
"""A generation that has committed so many has not come to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What this coordinator says of itself.

    Attributes:
        version: dtd's; workers of another release are refused, unless it is empty.
        host: its name, for those who read why.
        store_id, epoch: of its store; see REGISTERED in protocol.md.
    """

    version: str = ""
    host: str = ""
    store_id: str = ""
    epoch: int = 0


@dataclass(slots=True, kw_only=True)
class Decision:
    """A generation that is decided, and that nobody hears of before it is written down.

    Attributes:
        members: in rank order.
        holds: for each, whether it has the state that the generation starts from.
        lost: committed steps that it goes back.
        redone: a step under way is done again.
        before: what the job's books said of its newest generation before.
        failure: why it could not be written down; empty while it is being tried.
        again_at: when it is tried again.
    """

    members: list[Worker]
    holds: list[bool]
    lost: int
    redone: bool
    before: dict[str, Any]
    failure: str = ""
    again_at: float | None = None


class Finding(NamedTuple):
    """States of a generation differ after `step` steps; `digest` counts, none if it is empty."""

    generation: int
    step: int
    digest: str


@dataclass(slots=True, kw_only=True)
class Tally:
    """What of a worker's words was dropped since an operator was told last, and when that was."""

    dropped: int = 0
    told_at: float | None = None


@dataclass(slots=True, kw_only=True)
class Books:
    """Everything the coordinator decides on.

    Attributes:
        here: what this coordinator says of itself.
        workers: every known worker by name, the gone ones too (bounded).
        job: the one active job.
        queue: jobs that wait for their turn.
        epoch: of the store; 0 where none is known.  It is beyond that of `here` once the store was
            found to have gone back.
        vouched: members of the job's newest known generation who have come and had not left it.
        decision: the generation that is being written down.
        generation: the number of the newest generation.
        highest_seen: the highest number that a worker has shown it was given; new ones exceed it.
        roster: names in rank order; empty when no generation is forming, running or ending.
        start_step: committed step from which the generation runs.
        warming_since: when each warming worker began.
        settle_by: when the first generation may form without waiting for more workers.
        must_settle: the job has not formed a generation since it was activated.
        waiting_since: when it was first seen that somebody who is away may hold a newer state than
            those who are here.
        resumed: the operator does not want to wait for those.
        freeze_by: when members that have not reported FROZEN are given up.
        stop_by: when a generation of a job that is to end is broken off.
        form_at: no generation is formed before, after several that came to nothing.
        fruitless: generations in a row that committed no step.
        brief: generations in a row that broke after hardly a step.
        casualties: workers that died or hung in generations that ran, since the job got beyond
            `deadly_step`.
        bereaved: the current generation has lost such a worker.
        last_ends: how the processes of casualties have ended, as far as their successors know.
        deadly: generations in a row that ran, lost such a worker and did not get further.
        deadly_step: committed steps of the job when that happened, at most.
        has_run: the current generation has run, or was running when this coordinator started.
        advanced_at: when the current generation's committed step was last seen to advance.
        distrusted: newest generation in which states differed and none had a majority.
        set_aside: by name, workers on which the job's code has failed (`dtd.core.isolation`).
        verdict_by: when the job fails if only such workers are here.
        links: pairs of workers that cannot reach each other.
        recovery: what the job is recovering from, until it commits again.
        straggler: who holds the others up.
        saving: who writes the job's last state, while it is to end.
        told: the newest step that each member says it has committed in the generation.
        brought: members that brought the state which the generation starts from; empty if unknown.
        last_words: what members said when they left the generation, by name.
        finding: what came of comparing the digests in the last words of the newest generation.
        said_ended: by member, who says that its process has ended.
        contradicted: processes whose memory of a generation the others contradict, and whose word
            of it counts no more.
        agreed: by state, the digest that each rank says all had agreed on.
        claims: saved states of each worker that nobody has borne out yet.
        tallies: what was dropped of workers' words, by name (`dtd.core.hearing`).
        now: the clock of the event at hand.
        impossible: a transition that was asked for and that there is not; empty while all is well.
    """

    heartbeat_interval_s: float
    heartbeat_timeout_s: float
    detector: Detector
    generation: int
    here: Here = field(default_factory=Here)
    highest_seen: int = 0
    workers: dict[str, Worker] = field(default_factory=dict)
    job: Job | None = None
    queue: deque[Job] = field(default_factory=deque)
    generation_state: GenerationState = GenerationState.NONE
    roster_id: int = 0
    roster: list[str] = field(default_factory=list)
    start_step: int = 0
    warming_since: dict[str, float] = field(default_factory=dict)
    settle_by: float | None = None
    must_settle: bool = True
    waiting_since: float | None = None
    resumed: bool = False
    freeze_by: float | None = None
    stop_by: float | None = None
    form_at: float | None = None
    fruitless: int = 0
    brief: int = 0
    casualties: list[str] = field(default_factory=list)
    last_ends: dict[str, str] = field(default_factory=dict)
    bereaved: bool = False
    deadly: int = 0
    deadly_step: int = 0
    has_run: bool = False
    advanced_at: float | None = None
    distrusted: int = 0
    set_aside: dict[str, SetAside] = field(default_factory=dict)
    verdict_by: float | None = None
    links: Links = field(default_factory=Links)
    epoch: int = 1
    vouched: set[str] = field(default_factory=set)
    decision: Decision | None = None
    recovery: Recovery | None = None
    straggler: StragglerWatch = field(default_factory=StragglerWatch)
    saving: SaveOrders | None = None
    told: dict[str, int] = field(default_factory=dict)
    brought: frozenset[str] = frozenset()
    last_words: dict[str, m.Frozen | m.Finished] = field(default_factory=dict)
    finding: Finding | None = None
    said_ended: dict[str, set[str]] = field(default_factory=dict)
    contradicted: set[tuple[str, int]] = field(default_factory=set)
    agreed: dict[tuple[int, int], dict[str, str]] = field(default_factory=dict)
    claims: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    now: float = 0.0
    impossible: str = ""
    effects: list[Effect] = field(default_factory=list)

    def begin_generation(self, brought: Iterable[str] = ()) -> None:
        """Nobody has said anything in the generation that begins, or is taken up."""
        self.told.clear()
        self.last_words.clear()
        self.said_ended.clear()
        self.brought = frozenset(brought)

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
        self.generation_state, action = self._take(GENERATION, self.generation_state, event)
        if action is GenerationAction.BEGIN:
            self.has_run, self.advanced_at = False, None
        elif action is GenerationAction.HAS_RUN:
            self.has_run = True
        elif action is GenerationAction.ADVANCES:
            self.has_run, self.advanced_at = True, self.now
        elif action is GenerationAction.FORGET:
            self.decision = self.freeze_by = None
            self.roster = []
            self.has_run = self.bereaved = False

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
        worker.held = worker.warmed = worker.heartbeat = None
        worker.prepared, worker.frozen_in = (0, 0), 0
        worker.returning = False
        worker.stuck_since, worker.kept = None, ""
        self.detector.forget(worker.name)
        self.warming_since.pop(worker.name, None)

    # --- questions -------------------------------------------------------------------------

    def members(self) -> list[Worker]:
        """The roster's workers in rank order."""
        return [self.workers[name] for name in self.roster]

    def running_beats(self) -> dict[str, m.Heartbeat]:
        """The running members' last heartbeats, by name."""
        return {
            worker.name: worker.heartbeat
            for worker in self.members()
            if worker.heartbeat is not None and worker.state is WorkerState.RUNNING
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
            and worker.held is not None
            and worker.held.where == "memory"
            and max((worker.held.generation, worker.held.step), worker.prepared) >= start
            and worker.held.step + 1 >= job.step
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
        decision, self.decision = self.decision, None
        if decision is not None:
            for name, value in decision.before.items():
                setattr(job, name, value)

    def fence(self, job: Job) -> None:
        """The job's newest generation commits nothing more.

        One that nobody has heard of was decided since the last one had stopped, and goes on.
        """
        if self.decision is None:
            job.fenced = True

    def advance(self, step: int) -> None:
        """A step is committed: what went wrong before did not keep the job from it.

        A step that was done before, and lost with everybody who remembered it, proves nothing.
        """
        self.fruitless = 0
        self.bereaved = False
        if step > self.deadly_step:
            self.deadly = self.deadly_step = 0
            self.casualties.clear()

    def start_afresh(self) -> None:
        """Nothing that went wrong before counts."""
        self.fruitless = self.brief = self.deadly = self.deadly_step = 0
        self.casualties.clear()
        self.last_ends.clear()
        self.bereaved = False

    def note_brevity(self, job: Job) -> None:
        """A generation is over; one that ended at a step boundary as it should says nothing.

        What commits a step or two between two breaks is no progress worth the forming of rings.
        """
        if job.step - self.start_step >= FRUITFUL_STEPS:
            self.brief = 0
        elif self.recovery is not None and not self.recovery.at_boundary:
            self.brief += 1

    def bereave(self, name: str, step: int) -> None:
        """A worker died or hung while the step after `step` was computed."""
        self.casualties.append(name)
        self.bereaved = True
        self.deadly_step = max(self.deadly_step, step)

    def slept(self, gap_s: float) -> None:
        """This process did not run for a while: what others said meanwhile is yet to be read."""
        self.warming_since = {name: at + gap_s for name, at in self.warming_since.items()}
        if self.freeze_by is not None:
            self.freeze_by += gap_s

    def forget_all(self) -> None:
        """Be as at the start of a process; only what was given out stays given out."""
        fresh = Books(
            heartbeat_interval_s=self.heartbeat_interval_s,
            heartbeat_timeout_s=self.heartbeat_timeout_s,
            detector=Detector(timeout_s=self.detector.timeout_s, tick_s=self.detector.tick_s),
            generation=self.generation,
            here=self.here,
            highest_seen=self.highest_seen,
            epoch=self.epoch,
            now=self.now,
        )
        for field_ in fields(Books):
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
                generation=self.generation if self.roster else 0,
                step=step,
                details=details,
            )
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when the books do not balance."""
        assert not self.impossible, self.impossible
        assert len(set(self.roster)) == len(self.roster)
        members = {name for name, w in self.workers.items() if w.state in MEMBERS}
        if self.generation_state in (GenerationState.FORMING, GenerationState.RUNNING):
            assert members == set(self.roster), (members, self.roster)
        else:
            assert members <= set(self.roster), (members, self.roster)
        if self.job is None:
            assert self.generation_state is GenerationState.NONE
        else:
            assert self.job.state not in ENDED
            assert (self.job.state is JobState.SAVING) == (self.saving is not None)
        if self.decision is not None:
            assert self.generation_state is GenerationState.NONE
            assert self.job is not None
            assert self.job.state is JobState.FORMING
        assert all(self.workers[n].state is WorkerState.WARMING for n in self.warming_since)


def least_workers(job: Job) -> int:
    """The job's `elastic.min_workers`."""
    return int(job.spec["elastic"]["min_workers"])


def most_workers(job: Job) -> int:
    """The job's `elastic.max_workers`, within what a roster can hold."""
    return min(int(job.spec["elastic"]["max_workers"]), m.MAX_WORLD)
