"""Rows that arrive one after another, from a source whose position can be saved.

A stream becomes rows by number: row n is the n-th that it gives, counted from the beginning of the
job.  A step takes the next `global_batch_size` of them and each rank a slice, as of any dataset, so
the number of workers changes nothing.  Every rank reads the whole stream, and decodes its own rows.
Where each step ends the position is noted; that of the last committed step is part of the state
(`dtd.train.state.tensors`), where reading continues after a break, a fall-back or a restart.

    rows(position) -> (item, position after it), ...     and decode(item) -> row, if there is one
    __iter__, state_dict, load_state_dict                as torch's and others' stateful data sets
    __iter__ alone                                       position is a count: rows are read again

This holds if the source is deterministic: from one position it must give the same items on every
worker, as often as it is asked.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Final, Protocol

import numpy as np
from torch.utils.data import IterableDataset

from dtd.errors import TaskError
from dtd.job import JobSpec
from dtd.train.data.rows import kept_random_state, random_state
from dtd.train.data.sampling import HOOKS, Rows
from dtd.train.task import CollatedRows, MapDataset

MAX_POSITION_BYTES: Final = 64 * 1024
EPOCH_STEPS: Final = 1000
"""So many steps count as an epoch of a stream, for settings whose default is "every epoch"."""

PROBED_ROWS: Final = 4


class _Reader(Protocol):
    """One reading of a source, from some position on."""

    def next(self) -> Any:
        """The next item; StopIteration after the last."""
        ...

    def position(self) -> Any:
        """Position of the next item, fit for JSON."""
        ...


class _Positioned:
    """Items of a source with `rows(position)`."""

    def __init__(self, source: Any, position: Any) -> None:
        self._items = iter(source.rows(position))
        self._position = position

    def next(self) -> Any:
        pair = next(self._items)
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise TaskError(
                f"rows(position) of the stream gave a {type(pair).__name__}",
                remedy="let it yield pairs: an item, and the position after it",
            )
        item, self._position = pair
        return item

    def position(self) -> Any:
        return self._position


class _Stateful:
    """Items of a source with `state_dict` and `load_state_dict`, its own iterator or not."""

    def __init__(self, source: Any, position: Any) -> None:
        source.load_state_dict(position)
        self._source = source
        self._items = iter(source)

    def next(self) -> Any:
        return next(self._items)

    def position(self) -> Any:
        return self._source.state_dict()


class _Counted:
    """Items of a source that can be read from its beginning only."""

    def __init__(self, source: Any, position: Any) -> None:
        self._items = iter(source)
        self._count = 0
        while self._count < (position or 0):
            self.next()

    def next(self) -> Any:
        item = next(self._items)
        self._count += 1
        return item

    def position(self) -> Any:
        return self._count


class StreamRows:
    """A stream as a dataset of numbered rows; any thread may read.

    Reading rows in sequence costs nothing more than the source; going back opens it again at the
    nearest position that is known.  When a pass is over the next one begins.

    Attributes:
        first_rows: how many at its beginning workers compare before they train.

    Raises:
        TaskError: it has a part of an interface, no rows, or draws at random while it is read.
    """

    first_rows = PROBED_ROWS

    def __init__(self, source: Any, *, batch_rows: int) -> None:
        self._source = source
        self._batch_rows = batch_rows
        self._decode = getattr(source, "decode", None)
        self._kind: Any = _kind_of(source)
        self._begins_at = _plain(source.state_dict()) if self._kind is _Stateful else None
        self._reading = threading.Lock()
        self._noting = threading.Lock()
        self._reader: _Reader | None = None
        self._pass, self._read_in_pass = 0, 0
        self._next_row = 0
        self._known: dict[int, Any] = {0: None}
        self._moved = False
        self._check_quiet()

    def __len__(self) -> int:
        return 0  # it is not known

    def __getitem__(self, row: int) -> Any:
        """Read on to this row, and decode it.

        Raises:
            TaskError: it lies before every known position, or the stream has no rows.
        """
        with self._reading:
            self._turn_to(row)
            while self._next_row < row:
                self._read()
            item = self._read()
        return item if self._decode is None else self._decode(item)

    def position_at(self, row: int) -> Any:
        """The position before a row at which a step begins; reads on to it if need be.

        Raises:
            TaskError: it is not fit for the state.
        """
        if row not in self._known:
            with self._reading:
                if row not in self._known:
                    self._turn_to(row)
                while row not in self._known:
                    self._read()
        return self._known[row]

    def go_to(self, row: int, position: Any) -> None:
        """The current state ends before this row: positions known before do not count.

        Does not wait for the reading thread: a source may be slow.
        """
        with self._noting:
            self._known, self._moved = {row: position}, True

    def committed(self, row: int) -> None:
        """No step before this row will be repeated.  Does not wait for the reading thread."""
        with self._noting:
            self._known = {at: where for at, where in self._known.items() if at >= row}

    def _check_quiet(self) -> None:
        """Rows are read in a thread beside training, whose draws nobody else may disturb."""
        self._open(0, None)
        with kept_random_state():
            before = random_state()
            for _ in range(PROBED_ROWS):
                self._read()
            if random_state() != before:
                raise TaskError(
                    "the stream draws from the generators of the process while it is read",
                    remedy="draw in decode(item), where draws are keyed by row, or from a generator"
                    " that is part of the position",
                )
        self.go_to(0, None)

    # --- inside, by one reader at a time ---------------------------------------------------

    def _turn_to(self, row: int) -> None:
        """Have a reader that stands at this row or before it."""
        with self._noting:
            moved, self._moved = self._moved, False
            known = {at: where for at, where in self._known.items() if at <= row}
        if self._reader is not None and not moved and self._next_row <= row:
            return
        if not known:
            raise TaskError(f"row {row} of the stream is asked for, which is committed long since")
        self._next_row = max(known)
        position = known[self._next_row]
        self._open(0 if position is None else position["pass"], position)

    def _open(self, number: int, position: Any) -> None:
        """Begin to read pass `number` at a position; None is its beginning."""
        self._reader = None
        self._pass, self._read_in_pass = number, 0 if position is None else 1
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(number)
        at = self._begins_at if position is None else position["at"]
        self._reader = self._kind(self._source, at)

    def _read(self) -> Any:
        """The item of row `_next_row`; notes the position where a step ends."""
        reader, self._reader = self._reader, None  # one that raises is not to be asked again
        assert reader is not None, "a stream is read that is not open"
        try:
            item = reader.next()
        except StopIteration:
            if not self._read_in_pass:
                raise TaskError(
                    "the stream of train_dataset() has no rows", remedy="check its data"
                ) from None
            self._open(self._pass + 1, None)
            return self._read()
        self._reader = reader
        self._next_row, self._read_in_pass = self._next_row + 1, 1
        if self._next_row % self._batch_rows == 0:
            position = _plain({"pass": self._pass, "at": reader.position()})
            with self._noting:
                if not self._moved:
                    self._known[self._next_row] = position
        return item


def stream_rows(task: Any, spec: JobSpec, dataset: Any) -> StreamRows | None:
    """Return the numbered rows of a dataset that is a stream; None for other datasets.

    Raises:
        TaskError: the task or the job asks for more than a stream can give.
    """
    kind = type(dataset)
    numbered = hasattr(kind, "__getitem__") and not issubclass(kind, IterableDataset)
    if numbered or not (hasattr(kind, "__iter__") or hasattr(kind, "rows")):
        return None
    hooks = [name for name in HOOKS if hasattr(task, name)]
    for there, what, remedy in (
        (hooks, f"{', '.join(hooks)} of the task", "remove it: rows of a stream come as they come"),
        (spec.job.steps is None, "job.epochs", "give job.steps: a stream has no known length"),
        (spec.train.loader_workers, "train.loader_workers", "set it to 0: one thread reads it"),
    ):
        if there:
            raise TaskError(
                f"train_dataset() returned a stream, which has no use for {what}", remedy=remedy
            )
    return StreamRows(dataset, batch_rows=spec.job.global_batch_size)


def stream_in(dataset: MapDataset) -> StreamRows | None:
    """The stream behind a dataset; None if there is none."""
    rows: Any = dataset.dataset if isinstance(dataset, CollatedRows) else dataset
    return rows if isinstance(rows, StreamRows) else None


class InSequence:
    """The order of a stream's rows: as they come."""

    digest = b"in sequence"

    def __init__(self, batch_rows: int) -> None:
        self.places = EPOCH_STEPS * batch_rows

    def rows(self, seed: int, epoch: int, start: int, stop: int) -> Rows:
        """Row numbers continue from epoch to epoch."""
        del seed
        first = epoch * self.places
        return np.arange(first + start, first + stop, dtype=np.uint64)


def _kind_of(source: Any) -> type:
    if hasattr(source, "rows"):
        return _Positioned
    stateful = [hasattr(source, name) for name in ("state_dict", "load_state_dict")]
    if stateful == [True, True]:
        return _Stateful
    if any(stateful):
        raise TaskError(
            "the stream has one of state_dict() and load_state_dict(state) without the other",
            remedy="give it both, or rows(position)",
        )
    return _Counted


def _plain(position: Any) -> Any:
    try:
        text = json.dumps(position, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TaskError(
            f"the position of the stream is no JSON value: {error}",
            remedy="let it be numbers, text, lists and dictionaries",
        ) from error
    if len(text) > MAX_POSITION_BYTES:
        raise TaskError(
            f"the position of the stream takes {len(text)} bytes, and {MAX_POSITION_BYTES} is the"
            " limit",
            remedy="keep buffers out of it: note where they are filled from",
        )
    return json.loads(text)
