"""The coordinator's records of workers and of jobs.

A job's record is written to the coordinator's store and read from it, so fields may be added but
not removed.  `dtd.cluster.run` has the course of the job that runs, `dtd.cluster.state` combines
them.  No decisions here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dtd.cluster.transitions import GONE, JobState, WorkerState
from dtd.engine.rounds import Rounds
from dtd.job.terms import JobTerms, terms_of
from dtd.wire import messages as m

_OF_NO_USE: Final = GONE | {WorkerState.INCOMPATIBLE, WorkerState.ISOLATED}
WARM_UP = -1
"""Stands for the committed steps of a worker that failed before it was in a generation."""


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
        computed_s, computed_at: the processor time by which its warm-up was last seen to advance,
            and when that was.
        stuck_since: when its training was first found stuck, without progress since.
        kept: why it is not evicted although stuck; empty if there is no reason to evict it.
        signalled: whether the operator sent its process a signal, so that its end does not count
            as a failure.
    """

    heartbeat: m.Heartbeat | None = None
    computed_s: float = 0.0
    computed_at: float = 0.0
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


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """One worker, by its stable name; equal only to itself.

    Attributes:
        registration: the message with which its process registered.
        state: its state; assigned only by `ClusterState.move_worker`.
        reason: why it does not work, or what it waits for, for `dtdctl status`.
        ready_since: when it became ready to join.
        leaving: whether it is to be released as soon as no state is lost by that.
        moving_since: since when it is leaving because another job gets it: its process is to start
            again, and not to end; None: for any other reason, or not at all.
        foreign: whether it runs another release of dtd, and therefore gets no work.
        stray: whether it took part in a job of another store; its reports of jobs do not count.
        holdings: the states that it has reported.
        liveness: whether its process is alive and its training advances.
        generation, rank: the newest generation that it was assigned to or registered with, and its
            rank there.
        stopped: whether it has finished because it was told to stop.
        reconnection: the generation with which it registered again.
        data: what it has of the job's data, as it has said last, see
            `dtd.cluster.generation.datasets`.
    """

    registration: m.Register
    state: WorkerState = WorkerState.IDLE
    reason: str = ""
    ready_since: float = 0.0
    leaving: bool = False
    moving_since: float | None = None
    foreign: bool = False
    stray: bool = False
    holdings: Holdings = field(default_factory=Holdings)
    liveness: Liveness = field(default_factory=Liveness)
    generation: int = 0
    rank: int = 0
    stopped: bool = False
    reconnection: Reconnection = field(default_factory=Reconnection)
    data: dict[str, m.GetData] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Stable name of the worker."""
        return self.registration.name

    @property
    def incarnation(self) -> int:
        """Incarnation of its process."""
        return self.registration.incarnation

    @property
    def counts(self) -> bool:
        """Whether its job can count on it: it is there, fits the others, and does not leave."""
        return not (self.leaving or self.state in _OF_NO_USE)

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
        in_doubt: whether the store may not know the newest generation
            (`dtd.cluster.workers.registration`).
        forgetful: whether it may not know all states that earlier generations have committed.
        announced: whether that generation was announced and is not known to have ended.
        fenced: whether one of its members cannot take part in it any more, so that it commits no
            further step.
        start_generation, start_step: the starting state of that generation.
        checkpoint_generation, checkpoint_step, checkpoint_holders: the newest complete checkpoint,
            and the workers that have it or, if the state is sharded, a part of it.
        parts: in a sharded job, the parts of that checkpoint and of newer ones that are not
            complete, see `dtd.cluster.generation.checkpoints`.
        divergences: when replicas differed without a majority, see
            `dtd.cluster.generation.digests`.
        agreed: confirmed digests of saved states, see `dtd.cluster.generation.checkpoints`.
        branches: states on abandoned branches, see `dtd.cluster.generation.branches`.
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
        instructions: those with which all its workers compute updates, see
            `dtd.cluster.workers.instructions`; empty: each its own.
        data: digests of the job's data by name, as soon as a worker has had them.
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
    data: dict[str, str] = field(default_factory=dict)
    from_newest: int = 0
    instructions: str = ""
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
