"""The coordinator's records: of workers, of jobs and of their generations, and of a job's end.

A job's record is written to the coordinator's store and read from it, so fields may be added but
not removed.  `dtd.cluster.state` combines the records.  No decisions here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dtd.cluster.transitions import GenerationState, JobState, WorkerState
from dtd.engine.rounds import Rounds
from dtd.job.terms import JobTerms, terms_of
from dtd.wire import messages as m

WARM_UP = -1
"""Stands for the committed steps of a worker that failed before it was in a generation."""


# --- a worker ----------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Holdings:
    """The states that a worker has reported.

    Attributes:
        warmed: its report of data, model and numerics.
        held: the newest state it reported; a running member holds a newer one.
        saved: in a sharded job, its parts of further checkpoints on its disk.
        prepared: the state it would hold after committing what it has prepared, as (generation
            that commits the last step, steps).
        frozen_in: the generation in which it last reported FROZEN or FINISHED.
        digest: digest of the state in which it finished.
    """

    warmed: m.Warmed | None = None
    held: m.Held | None = None
    saved: tuple[m.Held, ...] = ()
    prepared: tuple[int, int] = (0, 0)
    frozen_in: int = 0
    digest: str = ""

    def forget(self) -> None:
        """Forget its states; the digest is kept for the job's result."""
        self.warmed = self.held = None
        self.saved, self.prepared, self.frozen_in = (), (0, 0), 0


@dataclass(slots=True, kw_only=True)
class Liveness:
    """Whether a process is alive and its training advances.

    Attributes:
        heartbeat: the last heartbeat.
        stuck_since: when its training was first found stuck, without progress since.
        kept: why it is not evicted although stuck; empty if there is no reason to evict it.
        signalled: whether the operator sent its process a signal, so that its end does not count
            as a failure.
    """

    heartbeat: m.Heartbeat | None = None
    stuck_since: float | None = None
    kept: str = ""
    signalled: bool = False

    def forget(self) -> None:
        """Forget its heartbeat after its process has ended."""
        self.heartbeat = None
        self.makes_progress()

    def makes_progress(self) -> None:
        """Record that its training is no longer stuck."""
        self.stuck_since, self.kept = None, ""


@dataclass(slots=True, kw_only=True)
class Reconnection:
    """The generation of the job with which a worker registered again.

    Attributes:
        returning: whether it has not left that generation yet.
        generation: number of that generation.
        phase: its phase in that generation, as in REGISTER, or as it has reported since.
    """

    returning: bool = False
    generation: int = 0
    phase: str = ""


@dataclass(slots=True, kw_only=True)
class Worker:
    """One worker, by its stable name.

    Attributes:
        registration: the message with which its process registered.
        state: its state; assigned only by `ClusterState.move_worker`.
        reason: why it does not work, or what it waits for, for `dtdctl status`.
        ready_since: when it became ready to join.
        leaving: whether it is to be released as soon as no state is lost by that.
        foreign: whether it runs another release of dtd, and therefore gets no work.
        stray: whether it took part in a job of another store; its reports of jobs do not count.
        holdings: the states that it has reported.
        liveness: whether its process is alive and its training advances.
        generation, rank: the newest generation that it was assigned to or registered with, and its
            rank there.
        stopped: whether it has finished because it was told to stop.
        reconnection: the generation with which it registered again.
    """

    registration: m.Register
    state: WorkerState = WorkerState.IDLE
    reason: str = ""
    ready_since: float = 0.0
    leaving: bool = False
    foreign: bool = False
    stray: bool = False
    holdings: Holdings = field(default_factory=Holdings)
    liveness: Liveness = field(default_factory=Liveness)
    generation: int = 0
    rank: int = 0
    stopped: bool = False
    reconnection: Reconnection = field(default_factory=Reconnection)

    @property
    def name(self) -> str:
        """Stable name of the worker."""
        return self.registration.name

    @property
    def incarnation(self) -> int:
        """Incarnation of its process."""
        return self.registration.incarnation

    @property
    def serves(self) -> bool:
        """Whether it is a parameter server: it owns parts of a state, and trains no rows."""
        return self.registration.serves


@dataclass(slots=True, kw_only=True)
class SetAside:
    """A worker on which the job's code failed.

    Attributes:
        at: committed steps at that time, or WARM_UP.
        failed: its report of the failure.
        until: when it is tried again; 0.0 once it has warmed up again.
        pause_s: duration of its current exclusion.
        incarnation: incarnation of the process that failed.
        pid: id of that process, which the process that replaces it keeps; another id means that the
            worker was started anew, presumably after a repair.
        again: number of consecutive failures at `at`.
    """

    at: int
    failed: m.Failed
    until: float
    pause_s: float
    incarnation: int
    pid: int
    again: int = 1

    @property
    def reason(self) -> str:
        """The reason for its exclusion, for `dtdctl status`."""
        first = self.failed.reason.partition("\n")[0]
        return f"set aside for {self.pause_s:g} s, or until it is started again: {first}"


# --- a job -------------------------------------------------------------------------------------


class Divergence(NamedTuple):
    """States differed in this generation after this many steps, first in this entry, if known."""

    generation: int
    step: int
    entry: str


@dataclass(slots=True, kw_only=True)
class Job:
    """One job, from submission to its result.

    Attributes:
        spec: its specification as a map of tables, for the store and the workers.
        terms: those of its settings that affect the coordinator's decisions.
        roster, roster_id: members of the newest generation in rank order, and the roster's id.
        servers: how many of them are parameter servers; they are the last ones.
        instances: ids of the members' state directories.
        in_doubt: whether the store may not know the newest generation (`dtd.cluster.registration`).
        forgetful: whether it may not know all states that earlier generations have committed.
        announced: whether that generation was announced and is not known to have ended.
        fenced: whether one of its members cannot take part in it any more, so that it commits no
            further step.
        start_generation, start_step: the starting state of that generation.
        checkpoint_generation, checkpoint_step, checkpoint_holders: the newest complete checkpoint,
            and the workers that have it or, if the state is sharded, a part of it.
        parts: in a sharded job, the parts of that checkpoint and of newer ones that are not
            complete, see `dtd.cluster.checkpoints`.
        divergences: when replicas differed without a majority, see `dtd.cluster.digests`.
        agreed: confirmed digests of saved states, see `dtd.cluster.checkpoints`.
        branches: states on abandoned branches, see `dtd.cluster.branches`.
        step_s: recent mean duration of a step; 0 if unknown.
        verdict: how the job will end once its state is saved: "done", "failed" or "cancelled";
            empty while it continues.
        package: sha256 of the task's code that was shipped with it; empty: the installed code.
        from_mode: what is taken from `from_job`: "resume": everything, "weights": the weights.
        weights: sha256 of a file with initial weights; empty: none.
        strict: whether all initial weights must fit the model.
        dataset_rows, dataset_fingerprint, task_digest: the job's data and code, as most workers
            report them.
        environment: software and hardware, as most workers report them.
        from_newest: step of the newest checkpoint of `from_job` at submission, if none was named.
        identity, from_identity: identities of this job and of `from_job`, see `dtd.job.terms`.
    """

    id: str
    spec: dict[str, Any]
    state: JobState = JobState.QUEUED
    reason: str = ""
    from_job: str = ""
    from_step: int = 0
    from_mode: str = ""
    package: str = ""
    identity: str = ""
    from_identity: str = ""
    generation: int = 0
    world_size: int = 0
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    loss: float | None = None
    samples_per_s: float = 0.0
    steps_lost: int = 0
    checkpoint_generation: int = 0
    checkpoint_step: int = 0
    checkpoint_holders: tuple[str, ...] = ()
    roster: tuple[str, ...] = ()
    roster_id: int = 0
    servers: int = 0
    instances: tuple[str, ...] = ()
    in_doubt: bool = False
    forgetful: bool = False
    announced: bool = False
    fenced: bool = True
    start_generation: int = 0
    start_step: int = 0
    branches: tuple[Any, ...] = ()
    step_s: float = 0.0
    verdict: str = ""
    skipped_steps: int = 0
    weights: str = ""
    strict: bool = True
    dataset_rows: int = 0
    dataset_fingerprint: str = ""
    task_digest: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    from_newest: int = 0
    divergences: tuple[Any, ...] = ()
    agreed: tuple[Any, ...] = ()
    parts: tuple[Any, ...] = ()
    metrics: dict[str, float | None] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    terms: JobTerms = field(init=False)

    def __post_init__(self) -> None:
        """Derive the terms from the specification."""
        self.terms = terms_of(self.spec)

    @property
    def rounds(self) -> Rounds:
        """The steps that are committed together."""
        return Rounds.of(self.terms.strategy)

    @property
    def name(self) -> str:
        """The name that the user gave to the job."""
        return self.terms.name


@dataclass(slots=True, kw_only=True)
class Recovery:
    """The interval from the end of one generation to the first committed step of a later one.

    Attributes:
        cause: why the generation ended, as text.
        worker: the worker concerned; empty if the cause is not a single worker.
        began_at: when the coordinator learned of the cause.
        detected_after_s: silence before that, at most the time since the cause.
        at_boundary: whether the generation ended between two steps.
        running: whether it had begun to train.
        steps_redone: number of steps that were begun and abandoned.
        steps_lost: number of committed steps that no worker holds any more.
    """

    cause: str
    worker: str
    began_at: float
    detected_after_s: float
    at_boundary: bool
    running: bool
    steps_redone: int = 0
    steps_lost: int = 0

    def again(self, *, at_boundary: bool, running: bool) -> None:
        """Record that another generation has ended before the job committed a step."""
        self.at_boundary, self.running = at_boundary, running

    def breaks(self, cause: str, now: float, *, worker: str, silent_s: float) -> None:
        """Record that a generation that was to end at a step boundary broke before it."""
        if self.at_boundary:
            self.cause, self.worker, self.began_at = cause, worker, now
            self.detected_after_s, self.at_boundary = silent_s, False

    def details(self, now: float) -> dict[str, Any]:
        """The figures of the recovery, taken when the job has committed a step again."""
        return {
            "cause": self.cause,
            "detected_after_s": round(self.detected_after_s, 3),
            "recovered_after_s": round(now - self.began_at, 3),
            "steps_redone": self.steps_redone,
            "steps_lost": self.steps_lost,
        }


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
class Decision:
    """A generation that is decided, and not announced before it is stored.

    Attributes:
        members: workers in rank order.
        holds: for each member, whether it has the generation's starting state.
        lost: number of committed steps that are lost.
        redone: whether a step that had begun is repeated.
        incomplete: which shards of a newer state are missing; empty if there is no such state.
        before: previous values of the fields of the job's record that the decision changed.
        failure: why it could not be stored; empty while an attempt is in progress.
        again_at: when storing is attempted again.
    """

    members: list[Worker]
    holds: list[bool]
    lost: int
    redone: bool
    before: dict[str, Any]
    incomplete: str = ""
    failure: str = ""
    again_at: float | None = None


@dataclass(slots=True, kw_only=True)
class Run:
    """The generation in which the job runs, or the previous one while there is none.

    Attributes:
        generation: its number, the newest that was assigned.
        highest: the highest number known, of any job or named by a worker; new ones exceed it.
        phase: its state.
        decision: the next generation, while it is being stored.
        roster: names in rank order; empty when no generation is forming, running or ending.
        has_run: whether it has run, or was running when this coordinator started.
        advanced_at: when its committed step was last seen to advance.
        lost_member: whether a worker has died or hung in it since it last advanced.
        brought: members that brought its starting state; empty if unknown.
        joined: members that join others which have trained without them; empty if unknown.
        differed: the reports of members that have seen its states differ.
        said_ended: for each member, the names of those that report that its process has ended.
    """

    generation: int = 0
    highest: int = 0
    phase: GenerationState = GenerationState.NONE
    decision: Decision | None = None
    roster: list[str] = field(default_factory=list)
    has_run: bool = False
    advanced_at: float | None = None
    lost_member: bool = False
    brought: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
    differed: list[m.Frozen] = field(default_factory=list)
    said_ended: dict[str, set[str]] = field(default_factory=dict)

    def begin(self, brought: Iterable[str] = (), joined: Iterable[str] = ()) -> None:
        """Discard the reports of the previous generation when one begins or is adopted."""
        self.brought, self.joined = frozenset(brought), frozenset(joined)
        self.differed.clear()
        self.said_ended.clear()


@dataclass(slots=True, kw_only=True)
class Setbacks:
    """Repeated failures that prevent the job's progress, counted over generations.

    Attributes:
        no_progress_generations: consecutive generations that committed no step.
        brief_generations: consecutive generations that broke before `state.FRUITFUL_STEPS` steps.
        last_cause: why the last generation ended.
        crashed_workers: workers that died or hung in generations that ran, since the job last got
            beyond `crash_step`.
        last_ends: how their processes ended, as far as the processes that replaced them know.
        crash_generations: consecutive generations that ran, lost such a worker and did not get
            beyond `crash_step`.
        crash_step: the highest number of committed steps at which such a worker was lost.
        dissenters: processes (name, incarnation) whose memory differs from the majority's.
        copies_differed: when a member differed from those from which it had just copied the state.
    """

    no_progress_generations: int = 0
    brief_generations: int = 0
    last_cause: str = ""
    crashed_workers: list[str] = field(default_factory=list)
    last_ends: dict[str, str] = field(default_factory=dict)
    crash_generations: int = 0
    crash_step: int = 0
    dissenters: set[tuple[str, int]] = field(default_factory=set)
    copies_differed: list[Divergence] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class WaitingTimes:
    """Deadlines and conditions of the next generation.

    Attributes:
        settle_by: when the first generation may form without waiting for more workers.
        must_settle: whether the job has formed no generation since it was activated.
        newer_since: since when an absent worker may hold a newer state than any worker present.
        resumed: whether the operator has decided not to wait for such workers.
        form_at: the earliest time for the next generation, after several that made no progress.
        enough_since: since when enough workers are ready, while others warm up.
        reason: what the next generation waits for, in words.
    """

    settle_by: float | None = None
    must_settle: bool = True
    newer_since: float | None = None
    resumed: bool = False
    form_at: float | None = None
    enough_since: float | None = None
    reason: str = ""

    def slept(self, gap_s: float) -> None:
        """Postpone deadlines: arriving workers could not be seen for `gap_s`."""
        if self.settle_by is not None:
            self.settle_by += gap_s
        if self.newer_since is not None:
            self.newer_since += gap_s
        if self.enough_since is not None:
            self.enough_since += gap_s


@dataclass(slots=True, kw_only=True)
class EndingTimes:
    """Deadlines of a generation that is ending, and the loss that the job recovers from.

    Attributes:
        freeze_by: when members that have not reported FROZEN are considered lost.
        stop_by: when the generation of a job that is to end is aborted.
        recovery: the loss that the job recovers from, until it commits again.
    """

    freeze_by: float | None = None
    stop_by: float | None = None
    recovery: Recovery | None = None

    def slept(self, gap_s: float) -> None:
        """Postpone deadlines: leaving members could not be seen for `gap_s`."""
        if self.freeze_by is not None:
            self.freeze_by += gap_s
        if self.stop_by is not None:
            self.stop_by += gap_s


# --- the end of a job --------------------------------------------------------------------------


FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0
MOST_CONTRADICTED: Final = 3
"""After so many writes of a state that is not the one that the ranks hold, its memory is faulty."""
WRITING_S: Final = 60.0
"""After this time without an answer, another worker is asked as well."""


@dataclass(slots=True)
class Failure:
    """A worker's failed writes: the reason, how many in a row, and when it is asked again."""

    reason: str
    times: int
    retry_at: float


@dataclass(slots=True, kw_only=True)
class SaveOrders:
    """Requests to write the last state of a job: pending ones, failed ones, and times of retries.

    Attributes:
        key: (generation, step) of the state to be written.
        began_at: when the job began to end.
        hopes_until: until when an absent worker is expected to reconnect with the state.
        asked: for each worker with a pending request, when it was asked.
        failures: failures of workers that could not write, by name.
        contradicted: how often a worker has written another state than the ranks hold, by name.
        hurried: whether the operator has decided not to wait for the write.
    """

    key: tuple[int, int]
    began_at: float
    hopes_until: float
    asked: dict[str, float] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    contradicted: dict[str, int] = field(default_factory=dict)
    hurried: bool = False

    def about(self, key: tuple[int, int]) -> None:
        """Set the state to be written; if it changes, pending requests become void."""
        if key != self.key:
            self.key = key
            self.asked.clear()

    def keep(self, names: Collection[str]) -> None:
        """Drop requests to all workers but these, which are present and hold the state."""
        self.asked = {name: at for name, at in self.asked.items() if name in names}

    def failed(self, name: str, reason: str, now: float) -> None:
        """Record that a worker could not write, and schedule the retry."""
        self.asked.pop(name, None)
        times = self.failures[name].times + 1 if name in self.failures else 1
        pause_s = min(FIRST_RETRY_S * 2 ** min(times - 1, 16), MAX_RETRY_S)
        self.failures[name] = Failure(reason, times, now + pause_s)

    def contradicts(self, name: str, now: float) -> None:
        """Record that a worker has written a state that is not the one that the ranks hold."""
        self.contradicted[name] = self.contradicted.get(name, 0) + 1
        self.failed(name, "what it has written is not what the ranks hold", now)

    def faulty(self) -> list[str]:
        """The workers that write another state again and again: it is not a fault of a disk."""
        return [name for name, times in self.contradicted.items() if times >= MOST_CONTRADICTED]

    def answered(self, name: str) -> None:
        """Record that a worker has written a state."""
        self.asked.pop(name, None)
        self.failures.pop(name, None)

    def slept(self, gap_s: float) -> None:
        """Postpone deadlines: no answer could be read for `gap_s`."""
        self.began_at += gap_s
        self.hopes_until += gap_s
        self.asked = {name: at + gap_s for name, at in self.asked.items()}

    def may_be_asked(self, name: str, now: float) -> bool:
        """Whether a worker is not writing now and its pause after a failure, if any, is over."""
        failure = self.failures.get(name)
        return name not in self.asked and (failure is None or now >= failure.retry_at)

    def writing(self, now: float) -> int:
        """Number of workers that are writing and not overdue."""
        return len(self.writers(now))

    def writers(self, now: float) -> list[str]:
        """Names of the workers that are writing and not overdue."""
        return [name for name, at in self.asked.items() if now - at < WRITING_S]

    def next_deadline(self, now: float) -> float | None:
        """Return when the next request becomes overdue, or a retry or `hopes_until` is due."""
        times = [at + WRITING_S for at in self.asked.values()]
        times += [failure.retry_at for failure in self.failures.values()]
        times.append(self.hopes_until)
        return min((moment for moment in times if moment > now), default=None)

    def why(self) -> str:
        """Why workers cannot write, as a message for the operator; empty if none has failed."""
        return "; ".join(
            f"{name} cannot write: {failure.reason}"
            for name, failure in sorted(self.failures.items())
        )
