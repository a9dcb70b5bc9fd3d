"""Worker to coordinator: what a job has to show for itself."""

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
    Words,
)
from dtd.wire.messages.registry import Message, message


@message
class Evaluated(Message):
    """Result of an evaluation; equal on all ranks, sent by rank 0."""

    job: Name
    step: U64
    metrics: Figures


@message
class CheckpointSaved(Message):
    """A checkpoint was published on the worker's disk; `kept`: the names of those still there.

    `write_s`: how long it took, in the background; 0 when it was not measured.
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


@message
class Agreed(Message):
    """All ranks hold this state, which is to be saved: they have compared its digests in the ring.

    Sent by each of them as soon as it has seen that, before anybody publishes the checkpoint.
    """

    job: Name
    generation: Generation
    step: U64
    digest: Name


@message
class JobOutput(Message):
    """Lines that the job's own code printed; the payload is UTF-8 text, a line each."""

    job: Name
    rank: U16


@message
class Notice(Message):
    """Something the operator should know and that stopped nothing."""

    job: Name
    event: NoticeKind
    message: Words


@message
class Progress(Message):
    """One committed step, from rank 0: what curves and metrics are made of.

    `skipped` says whether this step was committed without an update, `skipped_steps` how many were.
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
