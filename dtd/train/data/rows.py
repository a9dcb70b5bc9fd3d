"""Rows of a dataset: their batches, the keys of all random draws, the tally of rows used.

A dataset with `fetch` keys its own draws.  For any other, the generators of torch, numpy and
`random` are set by (seed, epoch, row) before the row is read.  They belong to the whole process, so
that is done only where nothing else draws: in a loader process, or in the training thread with
`kept_random_state` around it.

Each batch records which rows were read (`LoadedBatch`).  A rank sums a hash of (epoch, row) over
all its batches (`UsedRows`).  The sums of all ranks are added in the step's scalars
(`dtd.strategy.scalars`), modulo 2**64, and compared with the same sum over the plan's rows when the
step is committed.  So "exactly once" is measured where rows are used rather than derived from the
step's number.  The ledger keeps the totals.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
import sqlite3
import struct
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import default_collate

from dtd.engine.sampler import probe_rows, row_key
from dtd.errors import TaskError
from dtd.text.shown import listed
from dtd.train.data.sampling import mixed
from dtd.train.task import CollatedRows, MapDataset

RETRY_PAUSES_S: Final = (0.1, 0.3, 1.0, 2.5)
"""Pauses before reading a row again: failures of disks and networks are often temporary."""

_ROWS_NAMED = 16
_PACKED: Final = ("data", "sorted_indices", "unsorted_indices")
_TO_COLLATE: Final = (
    "give the task a collate(rows), or let all rows be tensors of one shape, numbers, text, or"
    " tuples, lists and dicts of them"
)
_TO_CONNECT: Final = (
    "a dataset with fetch() is read in a thread of its own: connect in the first fetch(), or with"
    " check_same_thread=False"
)
CPU: Final = torch.device("cpu")
NO_ROW: Final = -1
NO_STEP: Final = -1
"""In keys of draws that belong to no micro-batch, or to none of training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """Which rows are wanted.

    Attributes:
        step: number of the request; what is wanted after it is number `step + 1`.
        rows: row numbers, in order; none is a batch of None.
    """

    step: int
    epoch: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBatch:
    """A batch, and the requests to the dataset that made it.

    Attributes:
        batch: None if it has no rows.
        epoch: that keyed augmentation.
        retried: what could not be read at first, and why.
    """

    batch: Any
    epoch: int
    rows: tuple[int, ...]
    retried: tuple[str, ...] = ()

    def pin_memory(self) -> LoadedBatch:
        """The same with its tensors in page-locked memory; torch's loader calls this, too."""
        return self.changed(torch.Tensor.pin_memory)

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> LoadedBatch:
        return replace(self, batch=map_tensors(self.batch, change))


def load_rows(
    dataset: MapDataset, rows: Sequence[int], *, epoch: int, seed: int, reseed: bool
) -> LoadedBatch:
    """The batch of these rows, and which rows the dataset was asked for.

    What raises OSError is tried again for a few seconds.  With `reseed` the process's
    generators are keyed for each row of a dataset without `fetch`.

    Raises:
        TaskError: the dataset raised; names the row, and carries the traceback as a note.
    """
    retried: list[str] = []
    if not rows:
        return LoadedBatch(batch=None, epoch=epoch, rows=())
    fetch = getattr(dataset, "fetch", None)
    if fetch is not None:
        taken = list(rows)
        batch = _fetched(fetch, taken, retried, epoch=epoch, seed=seed)
        return LoadedBatch(batch=batch, epoch=epoch, rows=tuple(taken), retried=tuple(retried))
    samples, taken = [], []
    for row in rows:
        key = row_key(seed, epoch, row) if reseed else None
        try:
            samples.append(_read(partial(_row, dataset, row, key), f"row {row}", retried))
            taken.append(row)
        except Exception as error:
            raise _row_error(f"row {row}", error) from error
    batch = _collated(dataset, samples, rows)
    return LoadedBatch(batch=batch, epoch=epoch, rows=tuple(taken), retried=tuple(retried))


def _collated(dataset: MapDataset, samples: list[Any], rows: Sequence[int]) -> Any:
    collate = dataset.collate if isinstance(dataset, CollatedRows) else default_collate
    try:
        return collate(samples)
    except Exception as error:
        remedy = _TO_COLLATE if collate is default_collate else ""
        raise _row_error(f"making a batch of {_span(rows)}", error, remedy) from error


def _row(dataset: MapDataset, row: int, key: int | None) -> Any:
    if key is not None:
        seed_generators(key)
    return dataset[row]


def _read(read: Callable[[], Any], what: str, retried: list[str]) -> Any:
    """Return the result of `read`, which is retried; notes every failure."""
    for pause_s in RETRY_PAUSES_S:
        try:
            return read()
        except OSError as error:
            retried.append(f"{what} could not be read: {type(error).__name__}: {error}")
            time.sleep(pause_s)
    return read()


def map_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same batch with every tensor in its tuples, lists, dicts and dataclasses changed.

    Each of them keeps its class.  One in which nothing changes is returned itself.

    Raises:
        TaskError: an object of a class of the task's cannot be made with other values.
    """
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, PackedSequence):  # whose batch_sizes stay on the CPU
        moved = {name: map_tensors(getattr(batch, name), change) for name in _PACKED}
        return batch._replace(**moved)
    values = _values(batch)
    changed = {key: map_tensors(value, change) for key, value in values}
    if all(changed[key] is value for key, value in values):
        return batch
    try:
        return _with_values(batch, changed)
    except Exception as error:
        raise TaskError(
            f"a batch holds a {type(batch).__name__}, whose tensors cannot be moved to the"
            f" worker's device: {type(error).__name__}: {error}",
            remedy="let rows and collate(rows) return plain tuples, lists, dicts or dataclasses",
        ) from error


def _values(batch: Any) -> list[tuple[Any, Any]]:
    """Return the fields of a batch to look into, by index, key or name."""
    if isinstance(batch, dict):
        return list(batch.items())
    if isinstance(batch, list | tuple):
        return list(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return fields_of(batch)
    return []


def fields_of(value: Any) -> list[tuple[str, Any]]:
    """Names and values of a dataclass's fields, without those that are not set."""
    names = (field.name for field in dataclasses.fields(value))
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]


def _with_values(batch: Any, values: dict[Any, Any]) -> Any:
    """An object of the same class and attributes; no constructor of the task's is called."""
    kind = type(batch)
    if kind is tuple or hasattr(kind, "n_sequence_fields"):  # as of torch.return_types
        return kind(values.values())
    if isinstance(batch, tuple):
        made = tuple.__new__(kind, values.values())
        if hasattr(batch, "__dict__"):
            vars(made).update(vars(batch))
        return made
    made = copy.copy(batch)
    for key, value in values.items():
        if isinstance(batch, dict | list):
            made[key] = value
        else:
            object.__setattr__(made, key, value)  # also of a frozen one
    return made


def shape_of(batch: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes of the tensors in a batch, by which a compiler tells batches apart."""
    shapes: list[tuple[int, ...]] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(tensor.shape))
        return tensor

    map_tensors(batch, note)
    return tuple(shapes)


def draw_key(seed: int, step: int, first_row: int, update: int = 0) -> int:
    """Return the key of the draws in one micro-batch of one update; independent of the rank."""
    words = (seed, step, first_row, update) if update else (seed, step, first_row)
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(words)}q", *words)) >> 1


def seed_generators(key: int, device: torch.device = CPU) -> None:
    """Set the generators of torch, numpy and `random`; torch's only on the CPU and this device."""
    torch.default_generator.manual_seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    random.seed(key)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(key)


@contextlib.contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore the state of all random generators afterwards."""
    torch_state = torch.default_generator.get_state()
    numpy_state = np.random.get_state()
    python_state = random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def probed_rows(dataset: MapDataset, seed: int) -> list[int]:
    """Rows by which workers compare their data: the first ones of a stream."""
    first = getattr(dataset, "first_rows", None)
    return list(range(first)) if first is not None else probe_rows(seed, len(dataset))


def _fetched(
    fetch: Callable[..., Any], rows: Sequence[int], retried: list[str], *, epoch: int, seed: int
) -> Any:
    read = partial(fetch, list(rows), epoch=epoch, seed=seed)
    try:
        return _read(read, _span(rows), retried)
    except Exception as error:
        for row in rows:  # find out which row it was
            try:
                fetch([row], epoch=epoch, seed=seed)
            except Exception as row_failure:
                raise _row_error(f"row {row}", row_failure, _of_thread(error)) from row_failure
        raise _row_error(f"fetching {_span(rows)}", error) from error


def _of_thread(error: Exception) -> str:
    """The remedy where a connection is used in another thread than that which opened it."""
    bound = isinstance(error, sqlite3.ProgrammingError) and "thread" in str(error)
    return _TO_CONNECT if bound else ""


def _row_error(what: str, error: Exception, remedy: str = "") -> TaskError:
    failure = TaskError(
        f"{what} of the dataset raised {type(error).__name__}: {error}", remedy=remedy
    )
    failure.add_note("".join(traceback.format_exception(error)))
    return failure


def _span(rows: Sequence[int]) -> str:
    """List the rows by number: they are shuffled, so first and last are not informative."""
    return f"{'row' if len(rows) == 1 else 'rows'} {listed(rows, _ROWS_NAMED)}"


def random_state() -> tuple[bytes, bytes, int, object]:
    """Differs once one of the process's generators has moved."""
    numpy_state: Any = np.random.get_state()
    torch_state = torch.default_generator.get_state().numpy().tobytes()
    return torch_state, numpy_state[1].tobytes(), numpy_state[2], random.getstate()


MODULUS = 1 << 64
_SHOWN_ROWS = 8


@dataclass(slots=True, kw_only=True)
class UsedRows:
    """A tally of rows, of one rank or of all.

    Attributes:
        checksum: sum of the rows' hashes, modulo 2**64.
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
            f"rows {listed(loaded.rows, _SHOWN_ROWS)} of epoch {loaded.epoch} were used instead"
            f" of {listed(asked.rows, _SHOWN_ROWS)} of epoch {asked.epoch}"
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
