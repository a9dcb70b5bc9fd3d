"""The training loop's batches: exactly those requested, prepared in advance.

The loop supplies a plan, which maps a number to a request, and then asks for one request after the
other.  As long as it follows the plan, batches are prepared in advance.  If it does not (a step is
redone, the world size has changed), loading restarts at the new request, so a wrong batch is never
returned; only prepared batches that the new plan also needs are kept.  `dtd.engine.sampler`
determines the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from dtd.errors import LoaderLost, TaskError
from dtd.train.data.batch_sources import BatchSource, CallerSource, ProcessSource, ThreadSource
from dtd.train.data.rows import BatchRequest, LoadedBatch
from dtd.train.record import Warn
from dtd.train.task import MapDataset

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
        self._plan: Plan = _nothing_planned
        self._under_way: deque[BatchRequest] = deque()

    def warm_up(self, plan: Plan) -> None:
        """Start every loader process and have it load a batch, so that no step waits for that.

        They are given requests in turn, so as many of them as there are processes reach them all.

        Args:
            plan: what they may be asked for; small batches do.

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

        Raises:
            TaskError: loader processes do not work.
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

        Raises:
            TaskError: as `next`.
        """
        plan, self._plan = self._plan, _nothing_planned
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


def _nothing_planned(step: int) -> None:
    del step
