"""The order of rows in an epoch: the default order, or the one that the task defines.

Each is a function of (seed, epoch, place), equal on every worker; a step takes the next places and
each rank a slice of them.  So the number of workers changes nothing, and a step that is redone has
the same rows.  Every place of an epoch is used exactly once; how often a row stands in it is the
sampler's doing.  What workers give is compared before they train together (`Order.digest`).

The default order is `permuted_row` of `dtd.engine.sampler`, here in numpy for many places at once:
every rank needs the rows of the whole global batch, its own to load them and all of them to check
what was loaded, and entry by entry that would take milliseconds of a step.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from dtd.engine.sampler import Position, cipher_sides, round_keys, row_key
from dtd.errors import TaskError

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


POOL_BATCHES: Final = 64
"""Rows of so many batches are sorted by length at a time."""

HOOKS: Final = ("row_weights", "row_lengths", "row_order")
"""Methods of a task that order its rows."""

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_DRAW, _BATCHES, _WITHIN = (1 << 62) + 1, (1 << 62) + 2, (1 << 62) + 3
"""Key draws of different kinds; no dataset has such rows."""


class Order(Protocol):
    """The rows of an epoch by place.

    Attributes:
        places: of one epoch.
        digest: equal where orders are.
    """

    places: int
    digest: bytes

    def rows(self, seed: int, epoch: int, start: int, stop: int) -> Rows:
        """Rows at the places [start, stop), uint64."""
        ...


class Shuffled:
    """Every row once, in an order of each epoch's own."""

    digest = b""

    def __init__(self, length: int) -> None:
        self.places = length

    def rows(self, seed: int, epoch: int, start: int, stop: int) -> Rows:
        return ordered_rows(seed, epoch, start, stop, self.places)


class Weighted:
    """Rows are drawn with replacement, each with a chance that is proportional to its weight.

    Raises:
        TaskError: they are not one finite weight a row, all are zero, or their sum is not finite.
    """

    def __init__(self, weights: Any, length: int) -> None:
        self.places = length
        given = _array("row_weights()", weights, length, np.float64)
        if not (np.isfinite(given).all() and (given >= 0).all() and given.any()):
            raise TaskError(
                "row_weights() of the task returned weights that are negative, not finite or all 0",
                remedy="return a number of at least 0 for each row, and one above 0",
            )
        with np.errstate(over="ignore"):
            self._until = np.cumsum(given)
        if not np.isfinite(self._until[-1]):
            raise TaskError(
                "row_weights() of the task returned weights whose sum is beyond the range of"
                " float64",
                remedy="divide them by the largest one: only their proportions count",
            )
        self._last = int(np.flatnonzero(given)[-1])
        self.digest = _digest("weights", given)

    def rows(self, seed: int, epoch: int, start: int, stop: int) -> Rows:
        uniform = (_draws(seed, epoch, _DRAW, start, stop) >> np.uint64(11)) * 2.0**-53
        drawn = np.searchsorted(self._until, uniform * self._until[-1], side="right")
        rows: Rows = np.minimum(drawn, self._last).astype(np.uint64)
        return rows


class ByLength:
    """Every row once, in batches of similar length.

    The plain order is cut into pools of 64 batches; the rows of a pool are sorted by length and cut
    into batches, which come in a random order, each with its rows in a random order.  The smaller
    last batch of an epoch takes its rows as they come.
    """

    def __init__(self, lengths: Any, length: int, *, batch_rows: int) -> None:
        self.places = length
        self._lengths = _array("row_lengths()", lengths, length, np.int64)
        self._batch_rows = batch_rows
        self._pool = functools.lru_cache(maxsize=4)(self._make_pool)
        self.digest = _digest("lengths", self._lengths)

    def rows(self, seed: int, epoch: int, start: int, stop: int) -> Rows:
        pool_rows = POOL_BATCHES * self._batch_rows
        pools = range(start // pool_rows, -(-stop // pool_rows))
        parts = [self._pool(seed, epoch, pool) for pool in pools]
        first = pools.start * pool_rows
        rows: Rows = np.concatenate(parts)[start - first : stop - first]
        return rows

    def _make_pool(self, seed: int, epoch: int, pool: int) -> Rows:
        size = self._batch_rows
        start = pool * POOL_BATCHES * size
        stop = min(start + POOL_BATCHES * size, self.places)
        rows = ordered_rows(seed, epoch, start, stop, self.places)
        full, first = len(rows) // size, pool * POOL_BATCHES
        whole, rest = rows[: full * size], rows[full * size :]
        batches = whole[np.argsort(self._lengths[whole], kind="stable")].reshape(full, size)
        batches = batches[np.argsort(_draws(seed, epoch, _BATCHES, first, first + full))]
        within = _draws(seed, epoch, _WITHIN, start, start + full * size).reshape(full, size)
        batches = np.take_along_axis(batches, np.argsort(within, axis=1), axis=1)
        return np.concatenate([batches.reshape(-1), rest])


class Given:
    """The task gives the rows of each epoch, as many in every one."""

    def __init__(self, row_order: Any, length: int, *, seed: int) -> None:
        self._row_order, self._length = row_order, length
        self._epoch = functools.lru_cache(maxsize=2)(self._ask)
        first = self._ask(0, seed)
        self.places = len(first)
        self.digest = _digest("order", first)

    def rows(self, seed: int, epoch: int, start: int, stop: int) -> Rows:
        rows: Rows = self._epoch(epoch, seed)
        if len(rows) != self.places:
            raise TaskError(
                f"row_order({epoch}, {seed}) of the task returned {len(rows)} rows; epoch 0 has"
                f" {self.places}",
                remedy="return the same number of rows for every epoch",
            )
        return rows[start:stop]

    def _ask(self, epoch: int, seed: int) -> Rows:
        what = f"row_order({epoch}, {seed})"
        rows = _array(what, self._row_order(epoch, seed), None, np.int64)
        if not len(rows) or rows.min() < 0 or rows.max() >= self._length:
            raise TaskError(
                f"{what} of the task returned no rows, or some that the dataset has not",
                remedy=f"return row numbers from 0 to {self._length - 1}",
            )
        return rows.astype(np.uint64)


def order_of(task: Any, length: int, *, batch_rows: int, seed: int) -> Order:
    """The order in which a task's rows are used.

    Raises:
        TaskError: it has two of them, or one returns invalid values.
    """
    names = [name for name in HOOKS if hasattr(task, name)]
    if len(names) > 1:
        raise TaskError(
            f"the task has {' and '.join(names)}, and each of them orders the rows",
            remedy="keep one; row_order(epoch, seed) can do what both do",
        )
    if names == ["row_weights"]:
        return Weighted(task.row_weights(), length)
    if names == ["row_lengths"]:
        return ByLength(task.row_lengths(), length, batch_rows=batch_rows)
    if names == ["row_order"]:
        return Given(task.row_order, length, seed=seed)
    return Shuffled(length)


def _draws(seed: int, epoch: int, kind: int, start: int, stop: int) -> Rows:
    """64 random bits for each place of [start, stop): SplitMix64 from a keyed start."""
    places = np.arange(start, stop, dtype=np.uint64)
    return mixed(places * _GOLDEN + np.uint64(row_key(seed, epoch, kind)))


def _array(what: str, values: Any, length: int | None, kind: type) -> npt.NDArray[Any]:
    """One number a row, as numpy has them."""
    try:
        array = np.asarray(values)
        if array.ndim != 1 or (kind is np.int64 and array.dtype.kind not in "iu"):
            raise ValueError(f"shape {array.shape}, type {array.dtype}")
        array = array.astype(kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise TaskError(
            f"{what} of the task returned what is no list of numbers: {error}",
            remedy="return a list, an array or a tensor with one number for each row",
        ) from error
    if length is not None and len(array) != length:
        raise TaskError(
            f"{what} of the task returned {len(array)} numbers for {length} rows",
            remedy="return one for each row of train_dataset(), in its order",
        )
    return array


def _digest(kind: str, array: npt.NDArray[Any]) -> bytes:
    return hashlib.blake2b(kind.encode() + array.tobytes(), digest_size=16).digest()
