"""The ledger of committed rows: was every row of an epoch used exactly once?

One bit for each place of the current epoch's order, and counts over the whole job.  Planned rows
are entered by place; where other rows than planned went through the model, which
`dtd.train.data.rows` detects, the counts are corrected.  The ledger is part of the training
state, so it survives whatever the state survives.  Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any


class Ledger:
    """The record of committed rows.

    Args:
        length: rows of the dataset.

    Attributes:
        length: rows of the dataset.
        epoch: the current epoch.
        committed: rows of that epoch that have been entered.
        rows_repeated: rows that were used twice in an epoch.
        rows_missing: rows that a complete epoch left out.
        seed: the seed of the order to which the places refer; None if it was not recorded.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = 0
        self.committed = 0
        self.rows_repeated = 0
        self.rows_missing = 0
        self.seed: int | None = None
        self._bits = bytearray(-(-length // 8))

    def commit(self, epoch: int, rows: Iterable[int]) -> None:
        """Enter the rows of a committed step; rows of a later epoch close the current one."""
        if epoch != self.epoch:
            self.close_epoch()
            self.epoch = epoch
        for row in rows:
            byte, bit = row >> 3, 1 << (row & 7)
            if self._bits[byte] & bit:
                self.rows_repeated += 1
            else:
                self._bits[byte] |= bit
                self.committed += 1
        if self.committed == self.length:
            self.close_epoch()

    def amend(self, *, missing: int, repeated: int) -> None:
        """Correct the counts: some entered rows were not used, and others were used instead."""
        self.rows_missing += missing
        self.rows_repeated += repeated

    def close_epoch(self) -> None:
        """Count the rows that the current epoch left out, and begin an empty record."""
        if self.committed:
            self.rows_missing += self.length - self.committed
        self.epoch += 1
        self.committed = 0
        self._bits = bytearray(len(self._bits))

    def to_mapping(self) -> dict[str, Any]:
        """For the metadata of the state; equal ledgers give equal mappings."""
        page = bytes(self._bits) if self.committed else b""
        return {
            "length": self.length,
            "epoch": self.epoch,
            "committed": self.committed,
            "rows_repeated": self.rows_repeated,
            "rows_missing": self.rows_missing,
            "seed": self.seed,
            "bits": base64.b64encode(page).decode("ascii"),
        }

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Ledger:
        """The ledger that `to_mapping` wrote."""
        ledger = cls(int(mapping["length"]))
        ledger.epoch = int(mapping["epoch"])
        ledger.committed = int(mapping["committed"])
        ledger.rows_repeated = int(mapping["rows_repeated"])
        ledger.rows_missing = int(mapping["rows_missing"])
        ledger.seed = None if mapping.get("seed") is None else int(mapping["seed"])
        page = base64.b64decode(mapping["bits"])
        if page:
            ledger._bits = bytearray(page)
        return ledger
