"""The rows of a step: a pure function of (seed, epoch, offset), equal on every worker.

Every epoch visits each row exactly once in an order of its own, and the order does not depend on
how many workers there are: a step takes the next `global_batch_size` rows of it and each rank a
slice of those.  So workers may come and go between any two steps and no row is lost or repeated.

The order is a keyed permutation that is computed entry by entry, never stored: a dataset of a
billion rows costs no memory.  It is the generalised Feistel cipher over `left_size * right_size`
values with cycle walking from J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains",
CT-RSA 2002 (methods 2 and 3).  The round function is the finaliser of SplitMix64 (G. Steele,
D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).  It shuffles; it
is not meant to be secure.

This file must not read data or depend on ranks' progress.  It defines the order, for one
place; `dtd.train.data.sampling` computes it for many at once, and `dtd.train.plan` asks for them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUND_PAIRS = 3
_SHORT, _SHORT_ROUND_PAIRS = 256, 6
"""Below this length six rounds would visibly prefer some orders; above, they are twice as fast."""
_PROBE_EPOCH = -1
"""No training epoch has this number, so probing and training draw different rows."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the data: `offset` rows of epoch `epoch` are used; always offset < length."""

    epoch: int
    offset: int


def permuted_row(seed: int, epoch: int, index: int, length: int) -> int:
    """Row at place `index` of the order of this epoch; a bijection of range(length)."""
    assert 0 <= index < length, f"place {index} is outside an epoch of {length} rows"
    left_size, right_size = cipher_sides(length)
    keys = round_keys(seed, epoch, length)
    row = _encipher(index, left_size, right_size, keys)
    while row >= length:  # cycle walking: the cipher's range is a little larger than ours
        row = _encipher(row, left_size, right_size, keys)
    return row


def advance(position: Position, rows: int, length: int) -> Position:
    """Position after `rows` more rows, which must not cross the end of the epoch."""
    offset = position.offset + rows
    assert offset <= length, f"{rows} rows from {position} cross the end of an epoch of {length}"
    if offset == length:
        return Position(position.epoch + 1, 0)
    return Position(position.epoch, offset)


def slice_bounds(rows: int, world_size: int, rank: int) -> tuple[int, int]:
    """Start and stop of this rank's slice of a batch of `rows`.

    Slices are contiguous, in rank order, and differ by at most one row; with fewer rows than
    ranks some are empty.
    """
    assert 0 <= rank < world_size, f"rank {rank} is outside a roster of {world_size}"
    return rows * rank // world_size, rows * (rank + 1) // world_size


def steps_per_epoch(length: int, global_batch_size: int) -> int:
    """Steps that one epoch takes, a smaller last one included."""
    return -(-length // global_batch_size)


def position_of_step(step: int, *, global_batch_size: int, length: int) -> Position:
    """The position at which step `step` (0-based, counted from the start of the job) begins."""
    epoch, step_in_epoch = divmod(step, steps_per_epoch(length, global_batch_size))
    return Position(epoch, step_in_epoch * global_batch_size)


def probe_rows(seed: int, length: int, count: int = 16) -> list[int]:
    """Rows whose content workers compare before they train: both ends and a keyed sample."""
    places = range(min(count, length))
    sample = {permuted_row(seed, _PROBE_EPOCH, place, length) for place in places}
    return sorted(sample | {0, length - 1}) if length else []


def row_key(seed: int, epoch: int, row: int) -> int:
    """A 64-bit key for every random draw made for this row in this epoch, on any rank."""
    return _absorb(seed, epoch, row)


def cipher_sides(length: int) -> tuple[int, int]:
    """The sizes of the cipher's two halves; together they number at least `length` values."""
    left_size = math.isqrt(length - 1) + 1
    return left_size, -(-length // left_size)


@functools.lru_cache(maxsize=8)
def round_keys(seed: int, epoch: int, length: int) -> tuple[tuple[int, int], ...]:
    """The keys of the cipher's rounds, two each."""
    state = _absorb(seed, epoch, length)
    pairs = _SHORT_ROUND_PAIRS if length < _SHORT else _ROUND_PAIRS
    keys = [_mix((state + _GOLDEN * n) & _MASK) for n in range(1, 2 * pairs + 1)]
    return tuple(zip(keys[::2], keys[1::2], strict=True))


def _encipher(
    value: int, left_size: int, right_size: int, keys: tuple[tuple[int, int], ...]
) -> int:
    right, left = divmod(value, left_size)
    for left_key, right_key in keys:
        left = (left + _mix(right ^ left_key)) % left_size
        right = (right + _mix(left ^ right_key)) % right_size
    return left + left_size * right


def _absorb(*words: int) -> int:
    state = 0
    for word in words:
        state = _mix((state ^ (word & _MASK)) + _GOLDEN & _MASK)
    return state


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The rows of a job that were not used as planned.

    Those that were are the first `offset` places of an epoch's order, and need no record.

    Attributes:
        length: rows of an epoch.
        seed: of the order in which the current epoch was begun; None if it was not recorded.
        rows_repeated: rows that were used twice in an epoch.
        rows_missing: rows that were left out.
    """

    length: int
    seed: int | None = None
    rows_repeated: int = 0
    rows_missing: int = 0

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Ledger:
        """The ledger in the metadata of a state, of which dtd 0.1.0 kept more."""
        return cls(**{one.name: mapping[one.name] for one in fields(cls) if one.name in mapping})
