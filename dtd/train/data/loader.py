"""The training loop's batches: exactly those requested, prepared in advance.

The loop supplies a plan, which maps a number to a request, and then asks for one request after the
other.  As long as it follows the plan, batches are prepared in advance.  If it does not (a step is
redone, the world size has changed), loading restarts at the new request, so a wrong batch is never
returned; only prepared batches that the new plan also needs are kept.  `dtd.engine.sampler`
determines the rows.

Batches come from a source, which works through a stream of requests in order:

    dataset                                    loader_workers = 0       > 0
    offers fetch, or certainly never draws     ThreadSource             ProcessSource
    may draw from the process's generators     CallerSource             ProcessSource

The training thread draws from this process's generators (dropout), so no other thread may use
them; therefore the last row has no thread.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from dtd.errors import LoaderLost, TaskError
from dtd.train.data.rows import BatchRequest, LoadedBatch, kept_random_state, load_rows
from dtd.train.record import Warn
from dtd.train.task import MapDataset

AHEAD = 2
"""Number of batches loaded ahead of the one being waited for (for each loader process)."""

_PROCESS_ENDED = (RuntimeError, OSError, EOFError)
"""Errors of torch, or of its queues, when a loader process is gone."""


class BatchSource(Protocol):
    """Makes batches for a stream of requests.

    Attributes:
        processes: how many it has for that, besides this one.
    """

    processes: int

    def restart(self, requests: Iterator[BatchRequest]) -> None:
        """Continue with these requests immediately; drop all others that are in progress.

        Raises:
            LoaderLost: as in `take`.
        """
        ...

    def take(self) -> LoadedBatch:
        """Return the next request's batch.

        Raises:
            LoaderLost: a loader process has ended; `restart` continues with others.
            TaskError: its rows cannot be loaded.
        """
        ...

    def close(self) -> None:
        """Return when no thread or process is left."""
        ...


class CallerSource:
    """Loads in the thread that takes, with every generator put back afterwards."""

    processes = 0

    def __init__(self, dataset: MapDataset, *, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._requests: Iterator[BatchRequest] = iter(())

    def restart(self, requests: Iterator[BatchRequest]) -> None:
        self._requests = requests

    def take(self) -> LoadedBatch:
        wanted = next(self._requests)
        with kept_random_state():
            return load_rows(
                self._dataset, wanted.rows, epoch=wanted.epoch, seed=self._seed, reseed=True
            )

    def close(self) -> None:
        """Nothing to do."""


class ThreadSource:
    """Loads in one background thread."""

    processes = 0

    def __init__(self, dataset: MapDataset, *, seed: int, pin: bool) -> None:
        self._dataset = dataset
        self._seed = seed
        self._pin = pin
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="dtd-loader", initializer=_compute_alone
        )
        self._requests: Iterator[BatchRequest] = iter(())
        self._under_way: deque[tuple[BatchRequest, Future[LoadedBatch]]] = deque()

    def restart(self, requests: Iterator[BatchRequest]) -> None:
        made = {request: future for request, future in self._under_way if not _failed(future)}
        self._under_way.clear()
        self._requests = requests
        self._fill(made)
        for future in made.values():
            future.cancel()

    def take(self) -> LoadedBatch:
        """Keep the thread busy with the next batches, then wait for this one."""
        self._fill({})
        return self._under_way.popleft()[1].result()

    def _fill(self, made: dict[BatchRequest, Future[LoadedBatch]]) -> None:
        """Have enough under way; takes out of `made` what it can use."""
        while len(self._under_way) <= AHEAD and (wanted := next(self._requests, None)):
            future = made.pop(wanted, None) or self._thread.submit(self._load, wanted)
            self._under_way.append((wanted, future))

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _load(self, wanted: BatchRequest) -> LoadedBatch:
        loaded = load_rows(
            self._dataset, wanted.rows, epoch=wanted.epoch, seed=self._seed, reseed=False
        )
        return loaded.pin_memory() if self._pin else loaded


def _compute_alone() -> None:
    """Use no more than this thread, as torch's loader processes do.

    A pool of its own would spin beside the training thread's, on the same processors.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Threads that start later take the last number that any thread has set.
    restorer = threading.Thread(target=torch.set_num_threads, args=(threads,))
    restorer.start()
    restorer.join()


def _failed(future: Future[LoadedBatch]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


class ProcessSource:
    """Loads in torch's loader processes, each making whole batches.

    They are spawned, never forked: this process has threads.  So the dataset must survive being
    sent to another process.  They live until `close`, and end by themselves if this process dies.
    When one of them dies, all are replaced: torch cannot replace one.
    """

    def __init__(self, dataset: MapDataset, *, seed: int, processes: int, pin: bool) -> None:
        self._rows = _RequestedBatches(dataset, seed)
        self.processes = processes
        self._pin = pin
        self._requests = _RequestStream()
        self._loader: DataLoader[Any] | None = None
        self._batches: Iterator[Any] = iter(())

    def restart(self, requests: Iterator[BatchRequest]) -> None:
        """Batches under way are finished and dropped; the processes stay, if they live."""
        if self._loader is None:
            self._loader = self._open()
        self._requests.current = requests
        try:
            self._batches = iter(self._loader)
        except _PROCESS_ENDED as error:
            raise self._lost(error) from error
        except Exception as error:
            raise TaskError(
                f"the dataset cannot be sent to loader processes: {type(error).__name__}: {error}",
                remedy="define its class at the top of a module, and open files and connections"
                " when the first row is read, not before; or set loader_workers = 0",
            ) from error

    def take(self) -> LoadedBatch:
        try:
            made = next(self._batches)
        except _PROCESS_ENDED as error:
            raise self._lost(error) from error
        if isinstance(made, _Failure):
            failure = TaskError(made.message, remedy=made.remedy)
            for note in made.notes:
                failure.add_note(note)
            raise failure
        loaded: LoadedBatch = made
        return loaded

    def close(self) -> None:
        """The iterator ends its processes when the last reference to it goes."""
        self._batches = iter(())
        self._loader = None

    def _open(self) -> DataLoader[Any]:
        return DataLoader(
            self._rows,
            batch_size=None,
            sampler=self._requests,
            num_workers=self.processes,
            prefetch_factor=AHEAD,
            persistent_workers=True,
            multiprocessing_context="spawn",
            collate_fn=_unchanged,
            worker_init_fn=_end_with_parent,
            pin_memory=self._pin,
            # Without one of its own it would draw from the training thread's.
            generator=torch.Generator(),
        )

    def _lost(self, error: Exception) -> LoaderLost:
        """No process of this pool is used any more."""
        self.close()
        return LoaderLost(
            f"a loader process ended early: {error}",
            remedy="read what it printed; it may have run out of memory",
        )


class _RequestStream:
    """The sampler of a DataLoader: its requests can be exchanged."""

    def __init__(self) -> None:
        self.current: Iterator[BatchRequest] = iter(())

    def __iter__(self) -> Iterator[BatchRequest]:
        return self.current


@dataclass(frozen=True, slots=True)
class _Failure:
    """A TaskError on its way from a loader process."""

    message: str
    remedy: str
    notes: tuple[str, ...]


class _RequestedBatches(torch.utils.data.Dataset[Any]):
    """A dataset whose "rows" are whole batches; lives in the loader processes."""

    def __init__(self, dataset: MapDataset, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitem__(self, wanted: BatchRequest) -> LoadedBatch | _Failure:
        try:
            return load_rows(
                self._dataset, wanted.rows, epoch=wanted.epoch, seed=self._seed, reseed=True
            )
        except TaskError as error:
            return _Failure(error.message, error.remedy, tuple(error.__notes__))


def _unchanged(batch: Any) -> Any:
    return batch


def _end_with_parent(loader_worker: int) -> None:
    """End this process as soon as the one that started it is gone.

    torch looks at the parent's process id every 5 s, and never notices a parent that was killed
    while this process was still starting.
    """
    del loader_worker
    parent = multiprocessing.parent_process()
    assert parent is not None, "a loader process was started by nobody"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="dtd-parent-watch", daemon=True).start()


Plan = Callable[[int], BatchRequest | None]
"""Number of a request -> the request; None after the last."""


MAX_LOSSES: Final = 3
"""Most losses of loader processes in a row before a batch has been loaded."""


def warn_nobody(event: str, message: str) -> None:
    """A `Warn` that does nothing."""
    del event, message


class Loader:
    """Batches of one dataset, for one consumer in one thread.

    Args:
        dataset: what `train_dataset()` or `eval_dataset()` of the task returned.
        seed: the job's; with epoch and row it keys augmentation.
        loader_workers: number of loader processes; 0 loads in a thread of this process.
        device: where batches are needed, such as "cpu" or "cuda:0".
        warn: told of rows that were tried again and of loader processes that were replaced.
    """

    def __init__(
        self,
        dataset: MapDataset,
        *,
        seed: int,
        loader_workers: int = 0,
        device: str = "cpu",
        warn: Warn = warn_nobody,
    ) -> None:
        self._device = torch.device(device)
        self._warn = warn
        self._losses = 0
        self._source = _choose_source(
            dataset, seed=seed, loader_workers=loader_workers, pin=self._device.type == "cuda"
        )
        self._plan: Plan = lambda _: None
        self._under_way: deque[BatchRequest] = deque()

    def warm_up(self, plan: Plan) -> None:
        """Start every loader process and have it load a batch, so that no step waits for that.

        They are given requests in turn, so as many of them as there are processes reach them all.

        Raises:
            TaskError: loader processes do not work, or the dataset raised for a row.
        """
        asked: list[BatchRequest] = []
        while len(asked) < self._source.processes:
            request = plan(asked[-1].step + 1 if asked else 0)
            if request is None:
                break
            asked.append(request)
        by_number = {request.step: request for request in asked}
        self._plan = by_number.get
        for request in asked:
            self.next(request)

    def start(self, plan: Plan, at: int | None = None) -> None:
        """Follow this plan from the next request on; called again whenever the plan changes.

        Args:
            plan: what to prepare.
            at: number of the request that comes next; it is prepared right away.
        """
        self._plan = plan
        request = plan(at) if at is not None else None
        if request is not None and (not self._under_way or self._under_way[0] != request):
            self._go_on_from(request)

    def next(self, request: BatchRequest) -> LoadedBatch:
        """The batch of exactly this request, on the device.

        Raises:
            TaskError: the dataset raised for one of its rows, which is named.
        """
        if not self._under_way or self._under_way[0] != request:
            self._go_on_from(request)
        try:
            loaded = self._take(request)
        except BaseException:
            self._under_way.clear()  # asking again starts over
            raise
        for what in loaded.retried:
            self._warn("row_retried", what)
        self._under_way.popleft()
        if self._device.type == "cpu":
            return loaded
        return loaded.changed(lambda tensor: tensor.to(self._device, non_blocking=True))

    def read(self, rows: Sequence[int]) -> Any:
        """The batch of some rows outside of any plan, as of epoch 0.

        Also rows that are only looked at are read in the thread or process that reads all others:
        a dataset may open what cannot leave it when its first row is read.
        """
        plan, self._plan = self._plan, lambda _: None
        try:
            return self.next(BatchRequest(step=0, epoch=0, rows=tuple(rows))).batch
        finally:
            self._plan = plan

    def close(self) -> None:
        """Stop loading; no thread or process is left when this returns."""
        self._under_way.clear()
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _take(self, request: BatchRequest) -> LoadedBatch:
        while True:
            try:
                loaded = self._source.take()
            except LoaderLost as error:
                self._replace(error)
                self._go_on_from(request)
            else:
                self._losses = 0
                return loaded

    def _go_on_from(self, request: BatchRequest) -> None:
        while True:
            self._under_way.clear()
            try:
                self._source.restart(self._requests_from(request))
            except LoaderLost as error:
                self._replace(error)
            else:
                return

    def _replace(self, error: LoaderLost) -> None:
        """Loader processes were lost: let the source start others, a limited number of times."""
        self._losses += 1
        if self._losses >= MAX_LOSSES:
            self._losses = 0
            raise TaskError(f"{error.message}, {MAX_LOSSES} times in a row", remedy=error.remedy)
        self._warn("loader_restarted", f"{error.message}; its batch is loaded again by others")

    def _requests_from(self, request: BatchRequest | None) -> Iterator[BatchRequest]:
        """Yield the requests that the source works through, and note each as under way."""
        while request is not None:
            self._under_way.append(request)
            yield request
            request = self._plan(request.step + 1)


def _choose_source(
    dataset: MapDataset, *, seed: int, loader_workers: int, pin: bool
) -> BatchSource:
    if loader_workers > 0:
        return ProcessSource(dataset, seed=seed, processes=loader_workers, pin=pin)
    if hasattr(dataset, "fetch") or _never_draws(dataset):
        return ThreadSource(dataset, seed=seed, pin=pin)
    return CallerSource(dataset, seed=seed)


def _never_draws(dataset: Any) -> bool:
    """Whether it is certain that no row draws random numbers; of a class of the task's it is not.

    To read a few rows shows nothing about the others, such as longer ones that are cropped.
    """
    kind = type(dataset)
    if kind is Subset:
        return _never_draws(dataset.dataset)
    if kind is ConcatDataset:
        return all(map(_never_draws, dataset.datasets))
    return kind in (TensorDataset, list, tuple, range)
