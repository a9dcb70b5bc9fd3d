"""What happens to the coordinator's membership, what it answers, and the records it keeps.

The vocabulary between the pure machine (`dtd.core.membership`) and its shells
(`dtd.coordinator.daemon`, the simulation).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dtd.core.transitions import JobState, WorkerState
from dtd.wire import messages as m


@dataclass(slots=True, kw_only=True)
class Worker:
    """One worker, by its stable name.

    Attributes:
        leaving: it goes as soon as nothing is lost by that.
        signalled: the operator has sent its process a signal, so its end is no sign of anything.
        returning: it has come back with a generation of ours and has not left that yet.
        trains_in, trains_as: the generation that it has come back with, and what it does there.
        ready_since: when it became ready to join.
        warmed: what it reported of its data, model and numerics.
        held: the newest state it reported; what a running member holds is newer.
        prepared: the state it would hold after committing what it has prepared, as (generation
            that commits the last step, steps).
        frozen_in: the generation in which it reported FROZEN or FINISHED last.
        instance: of its state directory; empty when it is not known.
        jobs: those that this process may speak of: it was told to prepare for them, or came with
            one; the newest first.
        took_part: the newest generation that it was assigned to, or has come with.
        rank, ranks: its rank in that generation, and all that it ever had; a process begins as 0.
        foreign: it runs another release of dtd, and gets no work.
        stray: it took part in a job that is not ours; nothing that it says of jobs counts.
        stuck_since: when its training was first found to stand still, without having got on since.
        kept: why it is not put out for that; empty when there is nothing to put it out for.
    """

    name: str
    incarnation: int
    pid: int
    host: str
    device: str
    data_host: str
    data_port: int
    version: str
    state: WorkerState = WorkerState.IDLE
    reason: str = ""
    leaving: bool = False
    signalled: bool = False
    returning: bool = False
    trains_in: int = 0
    trains_as: str = ""
    ready_since: float = 0.0
    warmed: m.Warmed | None = None
    held: m.Held | None = None
    prepared: tuple[int, int] = (0, 0)
    frozen_in: int = 0
    digest: str = ""
    heartbeat: m.Heartbeat | None = None
    instance: str = ""
    jobs: tuple[str, ...] = ()
    took_part: int = 0
    rank: int = 0
    ranks: frozenset[int] = frozenset({0})
    foreign: bool = False
    stray: bool = False
    stuck_since: float | None = None
    kept: str = ""

    def given(self, job: str) -> None:
        """It is told to prepare for a job."""
        self.jobs = tuple(dict.fromkeys((job, *self.jobs)))[:MAX_JOBS_OF_A_PROCESS]

    def assigned(self, generation: int, rank: int) -> None:
        """It is told to take part in a generation."""
        self.took_part, self.rank, self.ranks = generation, rank, self.ranks | {rank}


MAX_JOBS_OF_A_PROCESS = 4
"""A process takes part in one job; it may have been left alone in others."""

WARM_UP = -1
"""Where a worker failed that had not taken part in a generation; otherwise its committed steps."""


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
        divergences: when replicas differed without a majority, see `dtd.core.divergence`.
        agreed: digests of saved states that all ranks had, see `dtd.core.vouching`.
        branches: states that it has left behind, see `dtd.core.branches`.
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


# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FromWorker:
    """A message from a registered worker, or its REGISTER."""

    name: str
    message: m.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """The control connection of this incarnation is gone; `farewell`: it said goodbye before."""

    name: str
    incarnation: int
    reason: str
    farewell: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job was submitted, or read back from the store."""

    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """The operator wants the job stopped."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequested:
    """The operator knows that those who are waited for will not come back."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRequested:
    """The operator wants a job gone, or with `step` its checkpoints of that step."""

    job: str
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested:
    """The operator wants the worker to leave at a step boundary."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRequested:
    """The operator wants a signal sent to the worker's process."""

    name: str
    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """The operator took back the worker's credential."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSaved:
    """A job is written down whose `SaveJob` announces a generation, or why it is not."""

    job: str
    generation: int
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undeliverable:
    """What the workers of a job must be told cannot be sent, and why; trying again is no use."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """A deadline has come."""


Event = (
    FromWorker
    | WorkerLost
    | Submitted
    | CancelRequested
    | ResumeRequested
    | DeleteRequested
    | DrainRequested
    | KillRequested
    | Revoked
    | JobSaved
    | Undeliverable
    | Ticked
)


# --- effects ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a message to a worker."""

    name: str
    message: m.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """Close a worker's control connection with this reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveJob:
    """Write the job down durably before the effects that follow.

    `announces` is the generation that members hear of once `JobSaved` says that it is written; 0
    for none.
    """

    job: Job
    announces: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something an operator will want to read about; `details` are figures, fit for JSON."""

    kind: str
    message: str
    job: str = ""
    worker: str = ""
    generation: int = 0
    step: int = 0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """The job has reached its last state."""

    job: Job


Effect = Send | Disconnect | SaveJob | Incident | JobEnded
