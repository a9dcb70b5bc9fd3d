"""What the coordinator remembers of a worker and of a job, in small records.

A worker's record says what it is, where it stands, and what it has reported; a job's is written to
the coordinator's store and read from it, so its fields are only added.  No decisions here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dtd.core.membership.transitions import JobState, WorkerState
from dtd.wire import messages as m

MAX_JOBS_OF_A_PROCESS = 4
"""A process takes part in one job; it may have been left alone in others."""

WARM_UP = -1
"""Where a worker failed that had not taken part in a generation; otherwise its committed steps."""


# --- a worker ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """How a process has introduced itself.

    Attributes:
        name: stable, of the worker.
        incarnation: of the process.
        pid: of the process, on its host.
        host, device: where it trains.
        data_host, data_port: where other workers reach it.
        version: of its dtd.
        instance: of its state directory; empty when it is not known.
    """

    name: str
    incarnation: int
    pid: int = 0
    host: str = ""
    device: str = ""
    data_host: str = ""
    data_port: int = 0
    version: str = ""
    instance: str = ""


@dataclass(slots=True, kw_only=True)
class Holdings:
    """What a worker has reported that it holds.

    Attributes:
        warmed: its data, model and numerics.
        held: the newest state it reported; what a running member holds is newer.
        prepared: the state it would hold after committing what it has prepared, as (generation
            that commits the last step, steps).
        frozen_in: the generation in which it reported FROZEN or FINISHED last.
        digest: of the state in which it finished.
    """

    warmed: m.Warmed | None = None
    held: m.Held | None = None
    prepared: tuple[int, int] = (0, 0)
    frozen_in: int = 0
    digest: str = ""

    def forget(self) -> None:
        """It holds nothing any more; the digest stays for the job's result."""
        self.warmed = self.held = None
        self.prepared, self.frozen_in = (0, 0), 0


@dataclass(slots=True, kw_only=True)
class Liveness:
    """Whether a process lives, and its training gets on.

    Attributes:
        heartbeat: the last one.
        stuck_since: when its training was first found to stand still, without having got on since.
        kept: why it is not put out for that; empty when there is nothing to put it out for.
        signalled: the operator has sent its process a signal, so its end is no sign of anything.
    """

    heartbeat: m.Heartbeat | None = None
    stuck_since: float | None = None
    kept: str = ""
    signalled: bool = False

    def forget(self) -> None:
        """Its process is gone."""
        self.heartbeat = None
        self.gets_on()

    def gets_on(self) -> None:
        """Its training is not stuck any more."""
        self.stuck_since, self.kept = None, ""


@dataclass(slots=True, kw_only=True)
class Participation:
    """What a process may speak of.

    Attributes:
        jobs: it was told to prepare for them, or came with one; the newest first.
        generation: the newest that it was assigned to, or has come with.
        rank, ranks: its rank in that generation, and all that it ever had; a process begins as 0.
    """

    jobs: tuple[str, ...] = ()
    generation: int = 0
    rank: int = 0
    ranks: frozenset[int] = frozenset({0})

    def given(self, job: str) -> None:
        """It is told to prepare for a job."""
        self.jobs = tuple(dict.fromkeys((job, *self.jobs)))[:MAX_JOBS_OF_A_PROCESS]

    def assigned(self, generation: int, rank: int) -> None:
        """It is told to take part in a generation."""
        self.generation, self.rank, self.ranks = generation, rank, self.ranks | {rank}


@dataclass(slots=True, kw_only=True)
class Reconnection:
    """A worker that has come back with a generation of ours.

    Attributes:
        returning: it has not left that generation yet.
        generation: with which it has come.
        phase: what it does there, in the words of REGISTER.
    """

    returning: bool = False
    generation: int = 0
    phase: str = ""


@dataclass(slots=True, kw_only=True)
class Worker:
    """One worker, by its stable name.

    Attributes:
        registration: how its process has introduced itself.
        state: where it stands; assigned by `ClusterState.move_worker` alone.
        reason: why it does not work, or what it waits for, for `dtdctl status`.
        ready_since: when it became ready to join.
        leaving: it goes as soon as nothing is lost by that.
        foreign: it runs another release of dtd, and gets no work.
        stray: it took part in a job that is not ours; nothing that it says of jobs counts.
        holdings: what it has reported that it holds.
        liveness: whether its process lives, and its training gets on.
        participation: what it may speak of.
        reconnection: with which generation it has come back.
    """

    registration: Registration
    state: WorkerState = WorkerState.IDLE
    reason: str = ""
    ready_since: float = 0.0
    leaving: bool = False
    foreign: bool = False
    stray: bool = False
    holdings: Holdings = field(default_factory=Holdings)
    liveness: Liveness = field(default_factory=Liveness)
    participation: Participation = field(default_factory=Participation)
    reconnection: Reconnection = field(default_factory=Reconnection)

    @property
    def name(self) -> str:
        """Its stable name."""
        return self.registration.name

    @property
    def incarnation(self) -> int:
        """Of its process."""
        return self.registration.incarnation


@dataclass(slots=True, kw_only=True)
class SetAside:
    """A worker on which the job's code failed.

    Attributes:
        at: committed steps at that time, or WARM_UP.
        failed: what it said.
        until: when it is tried again; 0.0 once it has warmed up again.
        pause_s: how long it is left alone this time.
        incarnation: of the process that failed.
        pid: of that process, and of the one that replaces it; who starts another has mended
            something.
        again: how often in a row it failed at this place.
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
        """Why it does not take part, for `dtdctl status`."""
        first = self.failed.reason.partition("\n")[0]
        return f"set aside for {self.pause_s:g} s, or until it is started again: {first}"


# --- a job -------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Job:
    """One job, from submission to its result.

    Attributes:
        roster, roster_id: members of the newest generation, in rank order.
        instances: of their state directories.
        store_epoch: of the store when that generation was decided, or the job submitted.
        announced: that generation was announced and has not ended, as far as we know.
        fenced: one of its members can take no further part in it, so it commits nothing more.
        start_generation, start_step: the state that it starts from.
        divergences: when replicas differed without a majority, see `membership.divergence`.
        agreed: digests of saved states that all ranks had, see `dtd.core.trust.vouching`.
        branches: states that it has left behind, see `membership.branches`.
        step_s: how long a step takes, a recent mean; 0 when that is not known.
        verdict: how it will end once what is held is saved: "done", "failed" or "cancelled"; empty
            while it is to go on.
        package: sha256 of the task's code that was shipped with it; empty: what is installed.
        from_mode: what is taken over of `from_job`: "resume" everything, "weights" the weights.
        weights: sha256 of a file of weights to begin with; empty: none.
        strict: all weights that are taken over must fit the model.
        dataset_rows, dataset_fingerprint, task_digest: of the data and code that it trains with, as
            most workers report them.
        identity, from_identity: of this job and of `from_job`, see `dtd.job.identity`.
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
    instances: tuple[str, ...] = ()
    store_epoch: int = 1
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
    divergences: tuple[Any, ...] = ()
    agreed: tuple[Any, ...] = ()
    metrics: dict[str, float | None] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name the user gave it."""
        return str(self.spec["job"]["name"])


@dataclass(slots=True, kw_only=True)
class Recovery:
    """From the end of one generation to the first step of a later one.

    Attributes:
        cause: in words.
        worker: to whom it happened; empty when it was nobody in particular.
        began_at: when the coordinator learned of it.
        detected_after_s: silence before that, at most what has passed since the cause.
        at_boundary: the generation ended between two steps.
        running: it had begun to train.
        steps_redone: steps begun and given up.
        steps_lost: committed steps that nobody holds any more.
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
        """Another generation ends before the job has committed."""
        self.at_boundary, self.running = at_boundary, running

    def breaks(self, cause: str, now: float, *, worker: str, silent_s: float) -> None:
        """A generation that was to end at a step boundary has broken before."""
        if self.at_boundary:
            self.cause, self.worker, self.began_at = cause, worker, now
            self.detected_after_s, self.at_boundary = silent_s, False

    def details(self, now: float) -> dict[str, Any]:
        """The figures, once the job has committed again."""
        return {
            "cause": self.cause,
            "detected_after_s": round(self.detected_after_s, 3),
            "recovered_after_s": round(now - self.began_at, 3),
            "steps_redone": self.steps_redone,
            "steps_lost": self.steps_lost,
        }
