"""The order of an epoch for many places at once: `permuted_row` of `dtd.core.sampler` in numpy.

Every rank needs the rows of the whole global batch, its own to load them and all of them to check
what was loaded (`dtd.train.used_rows`).  Entry by entry that would take milliseconds of a step.
What the order is, is said there; this file must give the same rows.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from dtd.core.sampler import Position, cipher_sides, round_keys

Rows = npt.NDArray[np.uint64]


def batch_rows(*, seed: int, position: Position, global_batch_size: int, length: int) -> list[int]:
    """Rows of the global batch at `position`; the last batch of an epoch may be smaller."""
    stop = min(position.offset + global_batch_size, length)
    rows = ordered_rows(seed, position.epoch, position.offset, stop, length)
    numbers: list[int] = rows.tolist()
    return numbers


@functools.lru_cache(maxsize=16)
def ordered_rows(seed: int, epoch: int, start: int, stop: int, length: int) -> Rows:
    """Rows at the places [start, stop) of an epoch's order, uint64, not to be written to.

    The loader, the loop and the check of what was loaded ask for the same ones.
    """
    rows = np.arange(start, stop, dtype=np.uint64)
    if rows.size:
        _permute(rows, seed, epoch, length)
    rows.flags.writeable = False
    return rows


def _permute(rows: Rows, seed: int, epoch: int, length: int) -> None:
    """Places become rows, where they lie."""
    left_size, right_size = (np.uint64(size) for size in cipher_sides(length))
    keys = np.array(round_keys(seed, epoch, length), dtype=np.uint64)
    rows[:] = _encipher(rows, left_size, right_size, keys)
    while (outside := np.flatnonzero(rows >= np.uint64(length))).size:  # cycle walking
        rows[outside] = _encipher(rows[outside], left_size, right_size, keys)


def _encipher(values: Rows, left_size: np.uint64, right_size: np.uint64, keys: Rows) -> Rows:
    right, left = np.divmod(values, left_size)
    for left_key, right_key in keys:
        left = (left + mixed(right ^ left_key) % left_size) % left_size
        right = (right + mixed(left ^ right_key) % right_size) % right_size
    return left + left_size * right


def mixed(values: Rows) -> Rows:
    """The finaliser of SplitMix64 over each value, modulo 2**64; the values are used up."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values
