"""Worker to coordinator: results of a job."""

from __future__ import annotations

from dtd.wire.fields import (
    U16,
    U32,
    U64,
    Directory,
    Figure,
    Figures,
    Flag,
    Generation,
    Name,
    Names,
    NoticeKind,
    Seconds,
    Shards,
    StepRows,
    Words,
)
from dtd.wire.messages.registry import Message, message


@message
class Evaluated(Message):
    """The result of an evaluation; equal on all ranks, sent by rank 0."""

    job: Name
    step: U64
    metrics: Figures


@message
class CheckpointSaved(Message):
    """A checkpoint was published on the worker's disk; `kept`: the names of all that it has kept.

    `write_s`: duration of the write, in the background; 0 when it was not measured.  `part`: which
    shards of a sharded state it contains; empty: all of it.
    """

    job: Name
    generation: Generation
    step: U64
    digest: Name
    size_bytes: U64
    directory: Directory
    metrics: Figures
    kept: Names
    write_s: Seconds = 0.0
    part: Shards = ()


@message
class Agreed(Message):
    """All ranks hold this state, which is to be saved: they have compared its digest in the ring.

    Sent by each rank as soon as it has seen the agreement, before any publishes the checkpoint.
    """

    job: Name
    generation: Generation
    step: U64
    digest: Name


@message
class JobOutput(Message):
    """Lines that the job's own code printed; the payload is UTF-8 text, one line for each."""

    job: Name
    rank: U16


@message
class Notice(Message):
    """Something that the operator should know; training continues."""

    job: Name
    event: NoticeKind
    message: Words


@message
class Progress(Message):
    """One committed step, from rank 0: the data of curves and metrics.

    `skipped` says whether this step was committed without an update, `skipped_steps` how many were.
    `steps` holds rows (`dtd.wire.step_rows`) of all steps since the message before.
    """

    job: Name
    generation: Generation
    step: U64
    epoch: U64
    loss: Figure
    learning_rate: Figure
    grad_norm: Figure
    rows: U32
    step_s: Seconds
    compute_s: Seconds
    comm_s: Seconds
    exposed_s: Seconds
    skipped: Flag
    skipped_steps: U64
    steps: StepRows = b""
