"""Warnings that would come again and again: the first one, and then a count now and then.

A full disk fails every checkpoint; an operator needs to know once, and that it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dtd.core.engine.control_word import Flags
from dtd.core.engine.step_protocol import StateKey

Warn = Callable[[str, str], None]
"""(event, message)."""


@dataclass(slots=True)
class _Kept:
    """What is known of one kind of event."""

    told_s: float
    count: int = 0


class WarningThrottle:
    """Passes warnings on, of each event no more than one in a while.

    Args:
        warn: where they go.
        every_s: the while.
        clock: seconds.
    """

    def __init__(
        self, warn: Warn, *, every_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._warn = warn
        self._every_s = every_s
        self._clock = clock
        self._events: dict[str, _Kept] = {}

    def __call__(self, event: str, message: str) -> None:
        """Pass it on, or count it."""
        now = self._clock()
        kept = self._events.get(event)
        if kept is not None and now - kept.told_s < self._every_s:
            kept.count += 1
            return
        more = f"; {kept.count} more like it since the last report" if kept and kept.count else ""
        self._events[event] = _Kept(told_s=now)
        self._warn(event, message + more)


# --- what training tells the rest of the worker, and what it asks of it ------------------------
#
# Plain values and two Protocols, without torch: the worker's event loop, its wire messages and
# tests use them in processes that never import it.


GotOn = Callable[[], None]
"""Called after each piece of something long, by whoever does it; may raise to give up."""

Where = Literal["memory", "checkpoint", "none"]
OutcomeKind = Literal["finished", "yielded", "stopped", "left"]


def nobody() -> None:
    """A `GotOn` where nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One committed step, as one rank saw it.

    Attributes:
        step: committed steps, this one included.
        epoch: epoch of its rows.
        loss: mean over the whole global batch; equal on all ranks.
        lr: learning rate of the first parameter group.
        grad_norm: global norm of the averaged gradients before clipping.
        rows: rows of the global batch.
        step_s: wall time from opening to closing the step.
        data_s: waiting for this rank's rows.
        compute_s: forward and backward.
        comm_s: something was on the wire.
        exposed_s: the part of `comm_s` during which training stood still.
        optimizer_s: scaling, clipping, optimizer and buffers.
        sent_bytes: gradients given to the next rank, sent or lent.
        skipped: gradients were not finite, so nothing was updated.
        skipped_steps: committed steps of the whole job so far that were skipped.
    """

    step: int
    epoch: int
    loss: float
    lr: float
    grad_norm: float
    rows: int
    step_s: float
    data_s: float
    compute_s: float
    comm_s: float
    exposed_s: float
    optimizer_s: float
    sent_bytes: int
    skipped: bool
    skipped_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """Metrics of the state after `step` steps; equal on all ranks."""

    step: int
    epoch: int
    metrics: Mapping[str, float]
    rows: int
    eval_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint that was published by this worker.

    Attributes:
        job_id: its job.
        generation: the one that committed its last step.
        step: committed steps in it.
        digest: hex digest of its state, agreed by all ranks.
        directory: where it lies.
        size_bytes: all its files.
        write_s: how long writing and publishing it took, in the background.
        metrics: of the evaluation at that step; empty if there was none.
        kept: names of the job's checkpoints on this disk after retention.
    """

    job_id: str
    generation: int
    step: int
    digest: str
    directory: str
    size_bytes: int
    write_s: float
    metrics: Mapping[str, float]
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupReport:
    """What workers compare before they train together; everything but `parameters` must agree."""

    dataset_rows: int
    dataset_fingerprint: str
    plan_digest: str
    numerics_fingerprint: str
    parameters: int
    steps_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldState:
    """The best state that a worker holds.

    Attributes:
        job_id: the job that it belongs to; another one's if the job starts from that.
        generation: the one that committed its last step; 0 when nothing was trained.
        step: committed steps, as they count in this job.
        digest: hex, of a checkpoint; empty otherwise, because hashing memory takes time that
            survivors of a broken ring do not have.
        where: in memory, in a checkpoint, or nowhere.
        label: the same for a person.
    """

    job_id: str
    generation: int
    step: int
    digest: str
    where: Where
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Why a generation ended in good order, and the state it left.

    Attributes:
        kind: "finished": the job's last step is committed and agreed.  "stopped": the job ends
            early because somebody asked.  "left": this worker asked to leave.  "yielded": the
            generation ended so that another can begin.
        step: committed steps.
        digest: hex digest of the state; empty if it was not computed for a yield.
        skipped: committed steps that updated nothing.
        rows_missing: rows that a complete epoch left out; 0 unless something is broken.
        rows_repeated: rows that were used twice in an epoch; 0 unless something is broken.
        metrics: of the last evaluation.
        ended_early: why a finished job has fewer steps than it was to have; empty if it has not.
    """

    kind: OutcomeKind
    step: int
    digest: str
    skipped: int
    rows_missing: int
    rows_repeated: int
    metrics: Mapping[str, float]
    ended_early: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateImage:
    """A whole state as one JSON text and the bytes of its tensors, in the text's order."""

    manifest: bytes
    blobs: Sequence[memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitFrom:
    """Another job's checkpoint to begin with.

    Attributes:
        job_id: whose.
        step: which; None is the newest.
        mode: "resume" takes everything over, "weights" only parameters and buffers.
        identity: the job's; empty if its checkpoints have none.
    """

    job_id: str
    step: int | None
    mode: Literal["resume", "weights"]
    identity: str = ""


class Requests(Protocol):
    """Where the training thread looks for what is asked of it."""

    def flags(self) -> Flags:
        """What is asked now; must not block."""
        ...


class Reporter(Protocol):
    """Hears of progress from the training thread; must be quick."""

    def progress(self) -> None:
        """The thread got on: a micro-batch, an evaluation batch, an update, a file's next part.

        Called often.  A thread that neither waits for the ring nor calls this is watched closely.
        """
        ...

    def begins(self, kind: str, shape: Hashable = None) -> None:
        """Work of a kind begins, on a batch of some shape: the first time may take longer."""
        ...

    def step_committed(self, record: StepRecord) -> None:
        """A step is committed."""
        ...

    def evaluated(self, record: EvalRecord) -> None:
        """An evaluation is complete."""
        ...

    def agreed(self, key: StateKey, digest: bytes) -> None:
        """All ranks hold this state, which is to be saved."""
        ...

    def checkpoint_saved(self, record: CheckpointRecord) -> None:
        """A checkpoint was published here."""
        ...

    def warning(self, event: str, message: str) -> None:
        """Something an operator should know, which stopped nothing."""
        ...
