"""How a bucket gets from the memory of gradients to the memory that the ring reads, and back.

On a CPU they are the same memory.  On a GPU each bucket has a twin in pinned host memory: a full
bucket is copied there on a stream of its own while backward goes on, a thread waits for the copy
and only then hands the bucket over, and the sum comes back the same way.  Gradients are packed by
`dtd.train.gradients`; nothing here knows parameters.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from dtd.core.collective import BucketMemory
from dtd.train.reduce import bucket_memory

_CUDA: Any = torch.cuda  # its constructors have no annotations

HandOver = Callable[[int], None]


class Staging(Protocol):
    """The way of a step's gradient buckets to the ring and back."""

    memories: list[BucketMemory]

    def send(self, index: int, start: HandOver) -> None:
        """A bucket is full: see that `start(index)` is called; returns at once."""
        ...

    def receive(self, index: int, wait: HandOver) -> None:
        """Call `wait(index)` and bring the sum back to the gradients' memory."""
        ...

    def settle(self) -> None:
        """After the last `receive`: make later work see what came back."""
        ...

    def close(self) -> None:
        """Leave nothing running."""
        ...


def staging_for(flats: Sequence[Tensor], device: torch.device) -> Staging:
    """The way for buckets on this device."""
    return PinnedStaging(flats, device) if device.type == "cuda" else InPlace(flats)


class InPlace:
    """Buckets in host memory: the ring works on the gradients themselves."""

    def __init__(self, flats: Sequence[Tensor]) -> None:
        self.memories = [bucket_memory(flat) for flat in flats]

    def send(self, index: int, start: HandOver) -> None:
        """Hand it over as it is."""
        start(index)

    def receive(self, index: int, wait: HandOver) -> None:
        """Wait for it."""
        wait(index)

    def settle(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is running."""


@dataclass(slots=True)
class _Copy:
    """One bucket's copy to the host in one step; a broken step leaves its own behind."""

    done: Any = None
    handed: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None


class PinnedStaging:
    """Buckets on a GPU, with a pinned twin each."""

    def __init__(self, flats: Sequence[Tensor], device: torch.device) -> None:
        self._flats = list(flats)
        self._device = device
        self._pinned = [
            torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True) for flat in flats
        ]
        self.memories = [bucket_memory(pinned) for pinned in self._pinned]
        self._stream: torch.cuda.Stream = _CUDA.Stream(device)
        self._copies = [_Copy() for _ in flats]
        self._queue: queue.SimpleQueue[tuple[int, _Copy, HandOver] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._hand_over, name="staging", daemon=True)
        self._thread.start()

    def send(self, index: int, start: HandOver) -> None:
        """Queue the copy behind what fills the bucket, and the handing over behind the copy."""
        copy = self._copies[index] = _Copy()
        filled = _CUDA.Event()
        filled.record(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(filled)
            self._pinned[index].copy_(self._flats[index], non_blocking=True)
            copy.done = _CUDA.Event(blocking=True)
            copy.done.record(self._stream)
        self._queue.put((index, copy, start))

    def receive(self, index: int, wait: HandOver) -> None:
        """Wait for the sum, then queue the copy back."""
        copy = self._copies[index]
        copy.handed.wait()
        if copy.failure is not None:
            raise copy.failure
        wait(index)
        with torch.cuda.stream(self._stream):
            self._flats[index].copy_(self._pinned[index], non_blocking=True)

    def settle(self) -> None:
        """The stream of the optimizer waits for the copies; the host does not."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def close(self) -> None:
        """End the thread."""
        self._queue.put(None)
        self._thread.join()

    def _hand_over(self) -> None:
        torch.cuda.set_device(self._device)
        while (queued := self._queue.get()) is not None:
            index, copy, start = queued
            try:
                copy.done.synchronize()
                start(index)
            except BaseException as error:  # noqa: BLE001 - raised again in the training thread
                copy.failure = error
            finally:
                copy.handed.set()
