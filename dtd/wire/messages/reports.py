"""Worker to coordinator: what a job has to show for itself."""

from __future__ import annotations

from dtd.wire.fields import F64, U16, U32, U64, Figures, Flag, Map, Name, Text
from dtd.wire.messages.registry import message


@message(0x1D)
class Evaluated:
    """Result of an evaluation; equal on all ranks, sent by rank 0."""

    job: Name
    step: U64
    metrics: Figures


@message(0x1E)
class CheckpointSaved:
    """A checkpoint was published on the worker's disk; `kept` {"names"}: those still there.

    `write_s`: how long it took, in the background; 0 when it was not measured.
    """

    job: Name
    generation: U32
    step: U64
    digest: Name
    size_bytes: U64
    directory: Text
    metrics: Figures
    kept: Map
    write_s: F64 = 0.0


@message(0x1F)
class JobOutput:
    """Lines that the job's own code printed; the payload is UTF-8 text, a line each."""

    job: Name
    rank: U16


@message(0x20)
class Notice:
    """Something the operator should know and that stopped nothing."""

    job: Name
    event: Name
    message: Text


@message(0x21)
class Progress:
    """One committed step, from rank 0: what curves and metrics are made of.

    `skipped` says whether this step was committed without an update, `skipped_steps` how many were.
    """

    job: Name
    generation: U32
    step: U64
    epoch: U64
    loss: F64
    learning_rate: F64
    grad_norm: F64
    rows: U32
    step_s: F64
    compute_s: F64
    comm_s: F64
    exposed_s: F64
    skipped: Flag
    skipped_steps: U64


Report = Evaluated | CheckpointSaved | JobOutput | Notice | Progress
