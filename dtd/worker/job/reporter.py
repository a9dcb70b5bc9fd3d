"""Passes the training thread's reports to the log and to the coordinator.

Called from the training thread, once a step: cheap, and bounded in what it sends.  Every step is a
line of the log at level debug; rank 0 sends progress a few times a second.  The same object carries
the requests (stop, end at the boundary) that the event loop raises and the loop reads before its
control word.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from dtd.cluster.workers.progress import ProgressWatch
from dtd.engine.control_word import Flags
from dtd.engine.step_protocol import StateKey
from dtd.text.shown import cut
from dtd.train.record import (
    CheckpointRecord,
    EvalRecord,
    MemoryRecord,
    Outcome,
    Reporter,
    StepRecord,
)
from dtd.wire import messages as m
from dtd.wire.step_rows import MAX_STEP_ROWS, StepRow, pack_step_rows

log = structlog.get_logger()

FILE: Final = "committed"
_DIGEST_BYTES: Final = 16
_RECORD: Final = struct.Struct(f"<Q{_DIGEST_BYTES}sQ")
_STEP: Final = struct.Struct("<Q")


class CommittedStep:
    """The record of one job in one worker.

    Attributes:
        before: (generation, step) of the last commit by an earlier process; (0, 0) if unknown.
    """

    def __init__(self, path: Path, job: str) -> None:
        self._job = hashlib.blake2b(job.encode(), digest_size=_DIGEST_BYTES).digest()
        self._file: int | None = None
        self.before = (0, 0)
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            found = os.pread(self._file, _RECORD.size, 0)
            if len(found) == _RECORD.size:
                generation, job_digest, step = _RECORD.unpack(found)
                self.before = (generation, step) if job_digest == self._job else (0, 0)

    def begin(self, generation: int) -> None:
        self._write(_RECORD.pack(generation, self._job, 0), 0)

    def committed(self, step: int) -> None:
        self._write(_STEP.pack(step), _RECORD.size - _STEP.size)

    def _write(self, content: bytes, offset: int) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, content, offset)


# --- reports of the training thread --------------------------------------------------------------


PROGRESS_EVERY_S: Final = 0.1
MAX_UNTOLD_STEPS: Final = 1024
"""Steps that any rank remembers, to tell of them if rank 0 dies before it could."""
RECENT: Final = 0.2
TIMES: Final = ("step_s", "data_s", "compute_s", "comm_s", "exposed_s", "optimizer_s")
_COMPILER: Final = "torch._dynamo"
"""Imported by torch.compile, and by torch's optimizers where a task makes one itself."""
OWN_TIMES: Final = ("data_s", "compute_s", "optimizer_s")
"""Times of a step that a worker spends itself; the rest is waiting for others."""


class JobReporter(Reporter):
    """Reporter and requests of one job.

    Args:
        tell: hands a message to the event loop, for the coordinator.
        tell_steps: hands the progress and the steps since the last one to the event loop, where
            `progress_message` makes one message of them.
        on_gpu: the job trains on one, whose libraries try out kernels for each shape.
    """

    def __init__(
        self,
        job: str,
        tell: Callable[[m.Message], None],
        tell_steps: Callable[[m.Progress, Sequence[StepRecord]], None],
        watch: ProgressWatch,
        record: CommittedStep,
        *,
        on_gpu: bool = False,
    ) -> None:
        self._record = record
        self._on_gpu = on_gpu
        self._job = job
        self._tell = tell
        self._tell_steps = tell_steps
        self._untold: deque[StepRecord] = deque(maxlen=MAX_UNTOLD_STEPS)
        self._logged: dict[str, float] = {}
        self._logged_step, self._logged_told = -1, True
        self._watch = watch
        self._log = structlog.get_logger().bind(job=job)
        self._generation = 0
        self._rank = -1
        self._step: StepRecord | None = None
        self._epoch = -1
        self._told_s = 0.0
        self._told_step = -1
        self._means: dict[str, float] = {}
        self._sums = dict.fromkeys(TIMES, 0.0)
        self._steps = self._rows = self._own_rows = 0
        self._flags = Flags()
        self._memory: tuple[m.MemoryPart, ...] = ()
        self.disk_failure = ""

    # --- requests ----------------------------------------------------------------------------

    def end_at_boundary(self, *, stop: bool, leave: bool) -> None:
        """Raise flags; called on the event loop."""
        self._flags = self._flags.asked(stop=stop, leave=leave)

    def flags(self) -> Flags:
        """(checkpoint, stop, leave, yield), read once a step."""
        return self._flags

    # --- reports -----------------------------------------------------------------------------

    def begin_generation(self, assign: m.Assign) -> None:
        """The next steps belong to this generation."""
        self._step = None
        self._generation, self._rank = assign.generation, assign.rank
        self._record.begin(assign.generation)
        self._flags = Flags()
        self._memory = ()
        self._told_s = 0.0
        self._log = structlog.get_logger().bind(
            job=self._job, generation=assign.generation, rank=assign.rank
        )

    def progress(self) -> None:
        self._watch.mark(time.monotonic())

    def begins(self, kind: str, shape: Hashable = None) -> None:
        specialises = self._on_gpu or _COMPILER in sys.modules
        self._watch.begins(kind, shape, specialises=specialises)

    def step_committed(self, record: StepRecord) -> None:
        """A step was committed; one without a measured time counts in no mean and no rate."""
        self._watch.committed()
        self._record.committed(record.step)
        self._epoch = record.epoch
        self._step = record
        self._untold.append(record)
        self._log.debug("step_committed", **dataclasses.asdict(record))
        if record.step_s > 0:
            self._add_times(record)
        now = time.monotonic()
        if self._rank == 0 and now - self._told_s >= PROGRESS_EVERY_S:
            self._told_s = now
            self._tell_progress(record)

    def _add_times(self, record: StepRecord) -> None:
        for key in (*TIMES, "sent_bytes"):
            value = float(getattr(record, key)) / record.steps
            self._means[key] = (1 - RECENT) * self._means.get(key, value) + RECENT * value
        for key in TIMES:
            self._sums[key] += float(getattr(record, key))
        self._own_rows = round(record.own_rows / record.steps)
        self._steps += record.steps
        self._rows += record.rows

    def flush(self) -> None:
        if self._rank != 0 or self._step is None:
            return
        if self._step.step != self._told_step:
            self._tell_progress(self._step)
        while self._untold:
            self._tell_progress(self._step)

    def evaluated(self, record: EvalRecord) -> None:
        self._log.info("evaluated", **dataclasses.asdict(record))
        if record.step != self._logged_step:
            self._tell_logged()
        self.logged(record.step, record.metrics)
        self._tell_logged()

    def logged(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures of a step, to be told with its progress; those of a step are told together."""
        self._logged = {**(self._logged if step == self._logged_step else {}), **figures}
        self._logged_step, self._logged_told = step, False

    def _tell_logged(self) -> None:
        if self._rank == 0 and not self._logged_told:
            step, figures = self._logged_step, dict(self._logged)
            self._tell(m.Evaluated(job=self._job, step=step, metrics=figures))
        self._logged_told = True

    def agreed(self, key: StateKey, digest: bytes) -> None:
        agreed = m.Agreed(
            job=self._job, generation=key.generation, step=key.step, digest=digest.hex()
        )
        self._tell(agreed)

    def checkpoint_saved(self, record: CheckpointRecord) -> None:
        """A checkpoint was published; called from the writer's thread."""
        self.disk_failure = ""
        self._log.info(
            "checkpoint_saved",
            step=record.step,
            directory=record.directory,
            size_bytes=record.size_bytes,
            write_s=record.write_s,
        )
        self._tell(
            m.CheckpointSaved(
                job=self._job,
                generation=record.generation,
                step=record.step,
                digest=record.digest,
                size_bytes=record.size_bytes,
                directory=record.directory,
                metrics=dict(record.metrics),
                kept=tuple(record.kept),
                write_s=record.write_s,
                part=() if record.part.is_whole else tuple(record.part.to_wire()),
            )
        )

    def memory_measured(self, record: MemoryRecord) -> None:
        self._log.info("memory_measured", **record.measured)
        self._memory = tuple(
            m.MemoryPart(
                name=name, measured_bytes=size, predicted_bytes=record.predicted.get(name, 0)
            )
            for name, size in record.measured.items()
        )

    def warning(self, event: str, message: str) -> None:
        if event == "checkpoint_failed":
            self.disk_failure = message
        self._log.warning(event, message=message)
        self.notice(event, message)

    def notice(self, event: str, message: str) -> None:
        self._tell(m.Notice(job=self._job, event=event, message=cut(message)))

    def _tell_progress(self, record: StepRecord) -> None:
        """Send progress with a round's figures per step, and up to MAX_STEP_ROWS untold steps."""
        self._tell_logged()
        self._told_step = record.step
        count = min(len(self._untold), MAX_STEP_ROWS)
        steps = [self._untold.popleft() for _ in range(count)]
        self._tell_steps(
            m.Progress(
                job=self._job,
                generation=self._generation,
                step=record.step,
                epoch=record.epoch,
                loss=record.loss,
                learning_rate=record.lr,
                grad_norm=record.grad_norm,
                rows=round(record.rows / record.steps),
                step_s=record.step_s / record.steps,
                compute_s=record.compute_s / record.steps,
                comm_s=record.comm_s / record.steps,
                exposed_s=record.exposed_s / record.steps,
                skipped=record.skipped,
                skipped_steps=record.skipped_steps,
            ),
            steps,
        )

    def result(self, outcome: Outcome) -> dict[str, Any]:
        """The job's result as this rank saw it: means over the steps that it took part in."""
        steps = max(1, self._steps)
        metrics = {str(name): float(value) for name, value in outcome.metrics.items()}
        return {
            "steps": outcome.step,
            "epochs": self._epoch + 1,
            "skipped_steps": outcome.skipped,
            "rows_missing": outcome.rows_missing,
            "rows_repeated": outcome.rows_repeated,
            "eval_loss": metrics.get("loss"),
            "eval_accuracy": metrics.get("accuracy"),
            "samples_per_s": self._rows / max(self._sums["step_s"], 1e-9),
            **({"ended_early": outcome.ended_early} if outcome.ended_early else {}),
            **{f"mean_{key}": value / steps for key, value in self._sums.items()},
        }

    def heartbeat_fields(self) -> dict[str, Any]:
        """The figures of a heartbeat; read on the event loop.

        The generation is there before its first step: a thread may get stuck in that one too.
        """
        generation = self._generation  # read before the step, as `begin_generation` writes it after
        record, means = self._step, dict(self._means)
        if record is None:
            return {"generation": generation}
        step_s, comm_s = means.get("step_s", 0.0), means.get("comm_s", 0.0)
        return {
            "generation": generation,
            "step": record.step,
            "epoch": record.epoch,
            "loss": record.loss,
            "rows": self._own_rows,
            "samples_per_s": self._own_rows / step_s if step_s else 0.0,
            "step_s": step_s,
            "data_s": means.get("data_s", 0.0),
            "compute_s": means.get("compute_s", 0.0),
            "optimizer_s": means.get("optimizer_s", 0.0),
            "comm_s": comm_s,
            "link_bytes_per_s": means.get("sent_bytes", 0.0) / comm_s if comm_s > 0 else 0.0,
            "learning_rate": record.lr,
            "grad_norm": record.grad_norm,
            "exposed_s": means.get("exposed_s", 0.0),
            "own_s": sum(means.get(key, 0.0) for key in OWN_TIMES),
            "memory": self._memory,
        }


def progress_message(progress: m.Progress, steps: Sequence[StepRecord]) -> m.Progress:
    """PROGRESS with the rows of these steps; runs on the event loop, not in the training thread."""
    return dataclasses.replace(progress, steps=pack_step_rows(map(_row_of, steps)))


def _row_of(record: StepRecord) -> StepRow:
    return StepRow(
        step=record.step,
        generation=record.generation,
        epoch=record.epoch,
        steps=record.steps,
        rows=record.rows,
        loss=record.loss,
        learning_rate=record.lr,
        gradient_norm=record.grad_norm,
        sent_bytes=record.sent_bytes,
        step_s=record.step_s,
        data_s=record.data_s,
        compute_s=record.compute_s,
        comm_s=record.comm_s,
        exposed_s=record.exposed_s,
        optimizer_s=record.optimizer_s,
        skipped=int(record.skipped),
    )
