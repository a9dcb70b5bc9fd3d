"""The rows that the model actually processed in a step, for comparison with the plan.

Each batch records which rows were read from the dataset (`dtd.train.data.rows.LoadedBatch`).  A
rank sums a hash of (epoch, row) over all its batches.  The sums of all ranks are added in the
step's scalars (`dtd.strategy.scalars`), modulo 2**64, and compared with the same sum over the
plan's rows when the step is committed.  So "exactly once" is measured where rows are used rather
than derived from the step's number.  The ledger keeps the totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dtd.engine.sampler import row_key
from dtd.train.data.rows import BatchRequest, LoadedBatch
from dtd.train.data.sampling import mixed

MODULUS = 1 << 64
_SHOWN_ROWS = 8


@dataclass(slots=True, kw_only=True)
class UsedRows:
    """A tally of rows, of one rank or of all.

    Attributes:
        checksum: sum of the rows' hashes, modulo 2**64.
        rows: number of rows.
        missing: number of requested rows that were not used.
        extra: number of used rows that were not requested.
        example: description of the first error on this rank; not sent to others.
    """

    checksum: int = 0
    rows: int = 0
    missing: int = 0
    extra: int = 0
    example: str = ""

    def add(self, asked: BatchRequest, loaded: LoadedBatch) -> None:
        """Add a batch that the model processes."""
        self.checksum = (self.checksum + checksum(loaded.epoch, loaded.rows)) % MODULUS
        self.rows += len(loaded.rows)
        if (loaded.epoch, loaded.rows) == (asked.epoch, asked.rows):
            return
        wanted = Counter((asked.epoch, row) for row in asked.rows)
        used = Counter((loaded.epoch, row) for row in loaded.rows)
        self.missing += (wanted - used).total()
        self.extra += (used - wanted).total()
        self.example = self.example or (
            f"rows {_shown(loaded.rows)} of epoch {loaded.epoch} were used instead of"
            f" {_shown(asked.rows)} of epoch {asked.epoch}"
        )

    def words(self) -> list[int]:
        """Return the tally as signed integers for the step's scalars, which add modulo 2**64."""
        signed = (self.checksum + MODULUS // 2) % MODULUS - MODULUS // 2
        return [signed, self.rows, self.missing, self.extra]

    @classmethod
    def of_words(cls, words: Sequence[int]) -> UsedRows:
        """Return the tally for these words, which may be sums over ranks."""
        signed, rows, missing, extra = words
        return cls(checksum=signed % MODULUS, rows=rows, missing=missing, extra=extra)

    def against(self, planned_checksum: int, planned_rows: int) -> tuple[int, int]:
        """Return lower bounds of the planned rows not used, and of the used rows not planned.

        Each rank knows which requested rows it did not get.  Overlaps and gaps between slices are
        visible to no rank; only the checksum reveals them.
        """
        missing = max(self.missing, planned_rows - self.rows)
        extra = max(self.extra, self.rows - planned_rows)
        if self.checksum != planned_checksum and not (missing or extra):
            return 1, 1
        return missing, extra


def checksum(epoch: int, rows: Sequence[int] | npt.NDArray[np.uint64]) -> int:
    """Return the sum of the hashes of (epoch, row), modulo 2**64; independent of the order."""
    salted = np.array(rows, dtype=np.uint64) ^ np.uint64(row_key(0, epoch, 0))
    return int(mixed(salted).sum(dtype=np.uint64))


def _shown(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else ""
    return f"[{', '.join(str(row) for row in rows[:_SHOWN_ROWS])}]{more}"
