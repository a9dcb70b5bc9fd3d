"""The records, reports and requests between training and the rest of the worker.

Plain values and what receives them, without torch: the worker's event loop, its wire messages and
tests use them in processes that never import it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dtd.checkpoint.format import JobFolder
from dtd.engine.control_word import Flags
from dtd.engine.shards import WHOLE, ShardSet
from dtd.engine.step_protocol import StateKey
from dtd.exchange.api import CommTiming

Warn = Callable[[str, str], None]
"""(event, message)."""


class WarningThrottle:
    """Forwards warnings, at most one of each event per interval.

    A full disk makes every checkpoint fail; an operator should see this once, and later that it
    lasts.
    """

    def __init__(
        self, warn: Warn, *, every_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._warn = warn
        self._every_s = every_s
        self._clock = clock
        self._told_s: dict[str, float] = {}
        self._untold: Counter[str] = Counter()

    def __call__(self, event: str, message: str) -> None:
        """Forward a warning, or count it."""
        now = self._clock()
        if now - self._told_s.get(event, -math.inf) < self._every_s:
            self._untold[event] += 1
            return
        self._told_s[event], count = now, self._untold.pop(event, 0)
        more = f"; {count} more like it since the last report" if count else ""
        self._warn(event, message + more)


Where = Literal["memory", "checkpoint", "none"]
OutcomeKind = Literal["finished", "yielded", "stopped", "left"]


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """One step, or round of steps, as one rank saw it; filled in from its opening to its commit.

    Times, in seconds, and bytes are those of all its steps together.  They are 0 if the step was
    committed at a take-over, after its generation had ended.  What follows `rank` down to
    `rows_repeated` is equal on all ranks.

    Attributes:
        step: committed steps, this one included.
        epoch: epoch of its last rows.
        loss: mean over the whole global batch.
        lr: learning rate of the first parameter group, in the last step.
        grad_norm: global norm of the averaged gradients before clipping; of the averaged change of
            the weights where steps are local.
        rows: rows of the global batch, or batches.
        skipped: gradients were not finite, so nothing was updated.
        skipped_steps: committed steps of the whole job so far that were skipped.
        steps: number of steps in the round; 1 if each step is committed separately.
        rows_missing: rows of the plan that no rank's model processed.
        rows_repeated: rows that were processed but are not in the plan.
        own_rows: rows of this rank; 0 if the step was committed at a take-over.
        step_s: wall time from opening to closing the step; 0 if it was not measured.
        data_s: time spent waiting for this rank's rows.
        compute_s: time of forward and backward.
        comm_s: time during which anything was being exchanged.
        exposed_s: the part of `comm_s` during which training was blocked.
        optimizer_s: time of scaling, clipping, optimizer and buffers.
        aside_s: time of exchanges beside training, which `comm_s` and `exposed_s` leave out.
        sent_bytes: bytes of gradients passed to the next rank, sent or in shared memory.
    """

    generation: int = 0
    rank: int = 0
    step: int = 0
    epoch: int = 0
    loss: float = 0.0
    lr: float = 0.0
    grad_norm: float = 0.0
    rows: int = 0
    skipped: bool = False
    skipped_steps: int = 0
    steps: int = 1
    rows_missing: int = 0
    rows_repeated: int = 0
    own_rows: int = 0
    step_s: float = 0.0
    data_s: float = 0.0
    compute_s: float = 0.0
    comm_s: float = 0.0
    exposed_s: float = 0.0
    optimizer_s: float = 0.0
    aside_s: float = 0.0
    sent_bytes: int = 0

    def communicated(self, timings: Sequence[CommTiming]) -> None:
        """Enter what the step's exchanges have taken, without those beside training."""
        self.sent_bytes = sum(one.sent_bytes for one in timings)
        self.comm_s = max(0.0, sum(one.busy_s for one in timings) - self.aside_s)
        self.exposed_s = max(0.0, sum(one.exposed_s for one in timings) - self.aside_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """Metrics of the state after `step` steps; equal on all ranks."""

    step: int
    epoch: int
    metrics: Mapping[str, float]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The argument of a task's callbacks.

    Attributes:
        rank: rank of this worker in the current ring.
        world_size: number of workers.
        step: committed steps.
        epoch: epoch of the last committed row.
        metrics: those of the step (loss, lr, grad_norm), or of the last evaluation.
        directory: directory of the checkpoint that this worker has saved; empty otherwise.
    """

    rank: int
    world_size: int
    step: int
    epoch: int
    metrics: Mapping[str, float]
    directory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint that was published by this worker.

    Attributes:
        digest: hex digest of its state, agreed on by all ranks.
        write_s: time taken to write and publish it, in the background.
        metrics: those of the evaluation at that step; empty if there was none.
        kept: names of the job's checkpoints on this disk after retention.
        part: which part of the state it is, if that is sharded.
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
    part: ShardSet = WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """Memory by part, as `dtd.doctor.memory` names them, in bytes.

    Attributes:
        measured: in a step.
        predicted: the strategy's memory by calculation.
    """

    measured: Mapping[str, int]
    predicted: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupReport:
    """Values that workers compare before they train together; all but `parameters` must agree.

    `numerics_fingerprint` is empty for a worker that computes no update, but copies that of others.
    """

    dataset_rows: int
    dataset_fingerprint: str
    plan_digest: str
    numerics_fingerprint: str
    parameters: int
    steps_total: int
    batches: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldState:
    """The best state that a worker holds.

    Attributes:
        job_id: the job that it belongs to; another job's id if the job starts from that one.
        step: committed steps, as counted in this job.
        digest: hex digest of a checkpoint; empty otherwise, because hashing memory would delay the
            survivors of a broken ring.
        part: which part of it, if the state is sharded.
    """

    job_id: str
    generation: int
    step: int
    digest: str
    where: Where
    label: str
    part: ShardSet = WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Why a generation ended without an error, and its last state.

    Attributes:
        kind: "finished": the job's last step is committed and agreed.  "stopped": the job ends
            early on request.  "left": this worker asked to leave.  "yielded": the
            generation ended so that another can begin.
        digest: hex digest of the state; empty if it was not computed for a yield.
        skipped: committed steps that updated nothing.
        rows_missing: rows that a complete epoch left out; 0 unless something is broken.
        rows_repeated: rows that were used twice in an epoch; 0 unless something is broken.
        ended_early: why a finished job has fewer steps than planned; empty if it does not.
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
    """A whole state as one JSON text and its tensors, in the text's order."""

    manifest: bytes
    blobs: Sequence[memoryview]
    item_bytes: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitFrom:
    """Another job's checkpoint to begin with.

    Attributes:
        step: the checkpoint's step; None for the newest.
        mode: "resume" takes over the whole state, "weights" only parameters and buffers.
        identity: the other job's identity; empty if its checkpoints have none.
    """

    job_id: str
    step: int | None
    mode: Literal["resume", "weights"]
    identity: str = ""

    def folder(self, directory: Path) -> JobFolder:
        """The other job's checkpoints in a directory of all jobs' checkpoints."""
        return JobFolder(directory, self.job_id, self.identity)


class Reporter:
    """Receives progress and events from the training thread, and has requests to it; is quick.

    Its methods do nothing, so that an implementation has only those that it needs.
    """

    def flags(self) -> Flags:
        """Return the current requests to this rank, such as to stop or to leave."""
        return Flags()

    def progress(self) -> None:
        """The thread has advanced: a micro-batch, an evaluation batch, an update, part of a file.

        Called often.  A thread that neither waits for the ring nor calls this is watched closely.
        """

    def begins(self, kind: str, shape: Hashable = None) -> None:
        """Work of a kind begins, on a batch of some shape: the first time may take longer."""

    def step_committed(self, record: StepRecord) -> None:
        """A step is committed."""

    def evaluated(self, record: EvalRecord) -> None:
        """An evaluation is complete."""

    def logged(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures that the user's loop gives for a step that is about to be reported."""

    def agreed(self, key: StateKey, digest: bytes) -> None:
        """All ranks hold this state, which is to be saved."""

    def checkpoint_saved(self, record: CheckpointRecord) -> None:
        """A checkpoint was published here."""

    def memory_measured(self, record: MemoryRecord) -> None:
        """Memory was measured, or has changed since."""

    def warning(self, event: str, message: str) -> None:
        """Report a problem that an operator should know about but that did not stop the job."""
