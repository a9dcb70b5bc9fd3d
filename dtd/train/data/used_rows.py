"""Which rows really went through the model in a step, to be held against the plan.

Each batch says which rows the dataset was asked for to make it (`dtd.train.data.rows.LoadedBatch`).
A rank sums a hash of (epoch, row) over all its batches; the sums of all ranks are added in the
step's scalars (`dtd.strategy.scalars`), modulo 2**64, and compared with the same sum over the
plan's rows when the step is committed.  So "exactly once" is measured where rows are used, and not
derived from the step's number.  The ledger keeps the account.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dtd.core.data.sampler import row_key
from dtd.train.data.rows import BatchRequest, LoadedBatch
from dtd.train.data.sampling import mixed

_MODULUS = 1 << 64
_SHOWN_ROWS = 8


@dataclass(slots=True, kw_only=True)
class UsedRows:
    """A tally of rows, of one rank or of all.

    Attributes:
        checksum: sum of the rows' hashes, modulo 2**64.
        rows: how many.
        missing: of the rows that were asked for, how many were not used.
        extra: how many were used that were not asked for.
        example: what was wrong first, in words; of one rank, and not sent.
    """

    checksum: int = 0
    rows: int = 0
    missing: int = 0
    extra: int = 0
    example: str = ""

    def add(self, asked: BatchRequest, loaded: LoadedBatch) -> None:
        """A batch goes through the model."""
        self.checksum = (self.checksum + checksum(loaded.epoch, loaded.rows)) % _MODULUS
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
        """For the step's scalars, which add integers modulo 2**64 and show them with a sign."""
        signed = (self.checksum + _MODULUS // 2) % _MODULUS - _MODULUS // 2
        return [signed, self.rows, self.missing, self.extra]

    @classmethod
    def of_words(cls, words: Sequence[int]) -> UsedRows:
        """The tally whose words, or whose ranks' words added up, these are."""
        signed, rows, missing, extra = words
        return cls(checksum=signed % _MODULUS, rows=rows, missing=missing, extra=extra)

    def against(self, planned_checksum: int, planned_rows: int) -> tuple[int, int]:
        """How many rows of the plan were not used, and how many beyond it; at least.

        Ranks know what they did not get.  That slices overlapped, or left a gap, nobody knows, and
        only the sum shows it.
        """
        missing = max(self.missing, planned_rows - self.rows)
        extra = max(self.extra, self.rows - planned_rows)
        if self.checksum != planned_checksum and not (missing or extra):
            return 1, 1
        return missing, extra


def checksum(epoch: int, rows: Sequence[int] | npt.NDArray[np.uint64]) -> int:
    """Sum of the hashes of (epoch, row) over all rows, modulo 2**64; in no order."""
    salted = np.array(rows, dtype=np.uint64) ^ np.uint64(row_key(0, epoch, 0))
    return int(mixed(salted).sum(dtype=np.uint64))


def _shown(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else ""
    return f"[{', '.join(str(row) for row in rows[:_SHOWN_ROWS])}]{more}"
