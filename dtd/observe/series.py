"""The figures that are stored, by name: their computation from reports, and their intake.

A *track* is the series that one source reports together: a job's steps, its evaluations, one
worker, one link.  Its columns are figures.  Positions of steps and evaluations are steps, those of
workers and links are seconds of Unix time.  Figures that a report does not have are NaN.

Steps that were lost are trained again by a later generation: its rows replace all from there on.
What is reported twice of one generation counts once.  Pure.
"""

from __future__ import annotations

import enum
import math
from typing import Final, NamedTuple

from dtd.wire import messages as m
from dtd.wire.fields import MOST_SECONDS
from dtd.wire.step_rows import StepRow, unpack_step_rows

NAN: Final = math.nan
EVALUATION: Final = "eval/"
"""Before the names of evaluation metrics."""

LINK_MARK: Final = ">"


class Kind(enum.StrEnum):
    """The kinds of tracks."""

    STEPS = "steps"
    EVALUATIONS = "evaluations"
    WORKER = "worker"
    LINK = "link"


class Track(NamedTuple):
    """One track of a job; `name` is a worker's, or FROM>TO of a link, else empty."""

    job: str
    kind: Kind
    name: str = ""


class Entry(NamedTuple):
    """One row on its way to the store.

    Attributes:
        position: the step, or the second.
        generation: the generation that committed the step; 0 of a worker or link.
    """

    track: Track
    position: int
    generation: int
    columns: tuple[str, ...]
    values: tuple[float, ...]


STEP_COLUMNS: Final = (
    *("loss", "learning_rate", "gradient_norm", "rows_per_s"),
    *("step_s", "data_s", "compute_s", "comm_s", "exposed_s", "optimizer_s"),
    *("rows", "sent_bytes", "skipped", "epoch", "steps", "generation", "unix_s"),
)
WORKER_COLUMNS: Final = (
    *("memory_bytes", "processor_cores", "gpu_use", "gpu_memory_bytes"),
    *("sent_bytes_per_s", "received_bytes_per_s", "worker_samples_per_s", "worker_step_s"),
    *("worker_data_s", "worker_compute_s", "worker_comm_s", "worker_exposed_s"),
    *("worker_optimizer_s", "worker_own_s", "worker_step"),
)
LINK_COLUMNS: Final = ("round_trip_s", "link_bytes_per_s")


def step_entry(job: str, row: StepRow, unix_s: float) -> Entry:
    """A committed step, or round, as one rank measured it."""
    values = (
        *(row.loss, row.learning_rate, row.gradient_norm),
        row.rows / row.step_s if row.step_s > 0 else NAN,
        *(row.step_s, row.data_s, row.compute_s, row.comm_s, row.exposed_s, row.optimizer_s),
        *(float(row.rows), float(row.sent_bytes), float(row.skipped), float(row.epoch)),
        *(float(row.steps), float(row.generation), unix_s),
    )
    return Entry(Track(job, Kind.STEPS), row.step, row.generation, STEP_COLUMNS, values)


def step_entries(message: m.Progress, unix_s: float) -> list[Entry]:
    """The committed steps of a report that was received now.

    The last one has just ended; each of the others ended when the next one began.
    """
    entries = []
    for row in reversed(known_rows(message)):
        entries.append(step_entry(message.job, row, unix_s))
        unix_s -= row.step_s
    return entries[::-1]


def evaluation_entry(message: m.Evaluated) -> Entry:
    """The figures of an evaluation, by name."""
    names = sorted(message.metrics)
    columns = tuple(EVALUATION + name for name in names)
    values = tuple(float(message.metrics[name]) for name in names)
    return Entry(Track(message.job, Kind.EVALUATIONS), message.step, 0, columns, values)


def worker_entry(
    name: str, beat: m.Heartbeat, before: m.Heartbeat | None, elapsed_s: float, unix_s: float
) -> Entry:
    """A worker's figures; rates are since an earlier heartbeat of the same process."""
    has_gpu = beat.gpu_use >= 0
    values = (
        float(beat.memory_bytes),
        _rate(beat.cpu_s, before.cpu_s if before else None, elapsed_s),
        beat.gpu_use if has_gpu else NAN,
        float(beat.gpu_memory_bytes) if has_gpu else NAN,
        _rate(beat.sent_bytes, before.sent_bytes if before else None, elapsed_s),
        _rate(beat.received_bytes, before.received_bytes if before else None, elapsed_s),
        *(beat.samples_per_s, beat.step_s, beat.data_s, beat.compute_s),
        *(beat.comm_s, beat.exposed_s, beat.optimizer_s, beat.own_s, float(beat.step)),
    )
    track = Track(beat.job, Kind.WORKER, name)
    return Entry(track, int(unix_s), 0, WORKER_COLUMNS, values)


def link_entry(name: str, to: str, beat: m.Heartbeat, unix_s: float) -> Entry:
    """The link of a worker to the next one in the ring."""
    track = Track(beat.job, Kind.LINK, f"{name}{LINK_MARK}{to}")
    return Entry(track, int(unix_s), 0, LINK_COLUMNS, (beat.rtt_s, beat.link_bytes_per_s))


def _rate(now: float, before: float | None, elapsed_s: float) -> float:
    if before is None or elapsed_s <= 0 or now < before:
        return NAN
    return (now - before) / elapsed_s


MAX_TRACKS_OF_A_JOB: Final = 512
"""Workers and links together; what a job has beyond is not remembered."""

MAX_COLUMNS: Final = 64
"""Most columns of one track; only evaluations have names of their own."""


def known_rows(message: m.Progress) -> list[StepRow]:
    """The rows of a PROGRESS that are of committed steps and have times."""
    return [
        row
        for row in unpack_step_rows(message.steps)
        if row.step <= message.step
        and row.generation <= message.generation
        and row.skipped <= 1 <= row.steps
        and all(math.isfinite(one) and 0 <= one <= MOST_SECONDS for one in row[9:15])
    ]
