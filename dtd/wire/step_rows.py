"""Committed steps as rows of fixed length: the octets of PROGRESS.steps (protocol.md).

A row is what one rank measured of one step.  Rows are packed rather than listed as records because
there may be a hundred in a message.  Which received rows
count is decided in `dtd.observe.series`.  Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

MAX_STEP_ROWS: Final = 128
"""Most rows of one message: a worker of 1000 steps a second reports them 10 times a second."""

_ROW: Final = struct.Struct("<5Q3dQ6dQ")
STEP_ROW_BYTES: Final = _ROW.size
MAX_STEP_ROWS_BYTES: Final = MAX_STEP_ROWS * STEP_ROW_BYTES
_MOST: Final = 2**63 - 1


class StepRow(NamedTuple):
    """One committed step, or round of steps; times and bytes are those of all its steps together.

    Attributes:
        step: committed steps, this one included.
        generation: the generation that committed it.
        epoch: epoch of its last rows.
        steps: number of steps in the round.
        rows: rows of the global batch, or batches.
        loss: mean over the global batch; may be any number, as may the next two.
        learning_rate: learning rate of the first parameter group.
        gradient_norm: norm of the averaged gradients before clipping.
        sent_bytes: bytes of gradients passed to the next rank.
        step_s: wall time; 0 if the step was committed at a take-over, as are the other times.
        data_s: of it, waiting for this rank's rows.
        compute_s: of it, forward and backward.
        comm_s: of it, anything was being exchanged.
        exposed_s: of that, training was blocked.
        optimizer_s: of it, scaling, clipping, optimizer and buffers.
        skipped: 1 if gradients were not finite, so that nothing was updated, else 0.
    """

    step: int
    generation: int
    epoch: int
    steps: int
    rows: int
    loss: float
    learning_rate: float
    gradient_norm: float
    sent_bytes: int
    step_s: float
    data_s: float
    compute_s: float
    comm_s: float
    exposed_s: float
    optimizer_s: float
    skipped: int


def pack_step_rows(rows: Iterable[StepRow]) -> bytes:
    """The rows as octets; the inverse of `unpack_step_rows`."""
    return b"".join(_ROW.pack(*row) for row in rows)


def unpack_step_rows(octets: bytes) -> list[StepRow]:
    """The rows in octets whose length is a multiple of `STEP_ROW_BYTES`; integers fit 64 bits."""
    rows = (StepRow(*values) for values in _ROW.iter_unpack(octets))
    return [row for row in rows if max(row[:5]) <= _MOST and row.sent_bytes <= _MOST]
