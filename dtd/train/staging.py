"""How a bucket gets from the memory of gradients to the memory that the ring reads, and back.

On a CPU they are the same memory (`dtd.train.ring_memory`), unless gradients travel in a narrower
type (`dtd.train.wire_type`): then each bucket has a twin there.  On a GPU it has one in pinned host
memory: a full bucket is copied there on a stream of its own while backward goes on, a thread waits
for the copy and only then hands the bucket over, and the sum comes back the same way.  Gradients
are packed by `dtd.train.gradients`; nothing here knows parameters.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from dtd.train.reduce import bucket_memory
from dtd.train.ring_memory import RingMemory
from dtd.train.wire_type import summed_at_home, summed_wide, wire_type
from dtd.transport.api import BucketMemory

_CUDA: Any = torch.cuda  # its constructors have no annotations

HandOver = Callable[[int], None]


class Staging(Protocol):
    """The way of a step's gradient buckets to the ring and back.

    Attributes:
        flats: a flat tensor for the gradients of each bucket, where the model is.
        memories: the buckets as the ring sees them.
        size_bytes: what they take of the memory of the device where the model is.
    """

    flats: list[Tensor]
    memories: list[BucketMemory]
    size_bytes: int

    def send(self, index: int, start: HandOver) -> None:
        """A bucket is full: see that `start(index)` is called; returns at once."""
        ...

    def receive(self, index: int, wait: HandOver) -> None:
        """Call `wait(index)` and bring the sum back to the gradients' memory."""
        ...

    def settle(self) -> None:
        """After a `receive`: make later work on the device see what came back."""
        ...

    def recall(self) -> None:
        """The buckets are about to change: whoever else still reads them reads in vain."""
        ...

    def close(self) -> None:
        """Leave nothing running."""
        ...


def staging_for(
    sizes: Sequence[tuple[int, torch.dtype]], device: torch.device, *, wire_dtype: str = ""
) -> Staging:
    """The way for buckets of these (elements, dtype) on this device; see `sync.wire_dtype`."""
    if device.type == "cuda":
        return PinnedStaging(sizes, device, wire_dtype)
    return HostStaging(sizes, wire_dtype)


class HostStaging:
    """Buckets in host memory: the ring works on the gradients themselves, or on narrow twins."""

    def __init__(self, sizes: Sequence[tuple[int, torch.dtype]], wire_dtype: str) -> None:
        self._memory = RingMemory([(count, wire_type(dtype, wire_dtype)) for count, dtype in sizes])
        self._travelling = self._memory.flats
        self.flats: list[Tensor] = []
        self.memories: list[BucketMemory] = []
        self.size_bytes = 0
        for (count, dtype), twin, memory in zip(
            sizes, self._travelling, self._memory.memories, strict=True
        ):
            self.size_bytes += twin.nbytes
            if twin.dtype == dtype:
                self.flats.append(twin)
                self.memories.append(memory)
            else:
                flat = torch.zeros(count, dtype=dtype)
                self.flats.append(flat)
                self.memories.append(summed_at_home(twin, flat, memory))
                self.size_bytes += flat.nbytes

    def send(self, index: int, start: HandOver) -> None:
        """Round it into its twin and hand that over; copying a bucket to itself does nothing."""
        self._travelling[index].copy_(self.flats[index])
        start(index)

    def receive(self, index: int, wait: HandOver) -> None:
        """Wait for it, and take what all ranks have, this one's own sums included."""
        wait(index)
        self.flats[index].copy_(self._travelling[index])

    def settle(self) -> None:
        """Nothing is under way."""

    def recall(self) -> None:
        """Lend under another number."""
        self._memory.recall()

    def close(self) -> None:
        """Lend no more."""
        self._memory.close()


@dataclass(slots=True)
class _Copy:
    """One bucket's copy to the host in one step; a broken step leaves its own behind."""

    done: Any = None
    handed: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None


class PinnedStaging:
    """Buckets on a GPU, with a pinned twin each; the GPU rounds to a narrower type, and back."""

    def __init__(
        self, sizes: Sequence[tuple[int, torch.dtype]], device: torch.device, wire_dtype: str
    ) -> None:
        self.flats = [torch.zeros(count, dtype=dtype, device=device) for count, dtype in sizes]
        self.size_bytes = sum(flat.nbytes for flat in self.flats)
        self._device = device
        self._pinned = [
            torch.empty(count, dtype=wire_type(dtype, wire_dtype), pin_memory=True)
            for count, dtype in sizes
        ]
        self.memories = [
            summed_wide(twin, bucket_memory(twin))
            if twin.dtype != flat.dtype
            else bucket_memory(twin)
            for twin, flat in zip(self._pinned, self.flats, strict=True)
        ]
        self._stream: torch.cuda.Stream = _CUDA.Stream(device)
        self._copies = [_Copy() for _ in sizes]
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
            self._pinned[index].copy_(self.flats[index], non_blocking=True)
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
            self.flats[index].copy_(self._pinned[index], non_blocking=True)

    def settle(self) -> None:
        """The stream of the optimizer waits for the copies; the host does not."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def recall(self) -> None:
        """The twins are not lent."""

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
