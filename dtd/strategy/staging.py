"""How a bucket gets from the memory of gradients to the memory that the ring reads, and back.

On a CPU they are the same memory (`dtd.strategy.wire_memory`), unless a codec has gradients travel
in another form (`dtd.strategy.codec`): then each bucket has a wire buffer there.  On a GPU it has
one in pinned host memory: a full bucket is copied there on a stream of its own while backward goes
on, a thread waits for the copy and only then hands the bucket over, and the sum comes back the same
way.  Gradients are packed by `dtd.strategy.gradients`; nothing here knows parameters.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from dtd.strategy.codec.api import Codec
from dtd.strategy.wire_memory import RingMemory, bucket_memory
from dtd.transport.api import BucketMemory

_CUDA: Any = torch.cuda  # its constructors have no annotations

StartBucket = Callable[[int], None]
"""Hands over the bucket of this index."""
WaitForBucket = Callable[[int], None]
"""Returns when the bucket of this index holds its sum."""


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

    def send(self, index: int, start: StartBucket) -> None:
        """A bucket is full: see that `start(index)` is called; returns at once."""
        ...

    def receive(self, index: int, wait: WaitForBucket) -> None:
        """Call `wait(index)` and bring the sum back to the gradients' memory."""
        ...

    def settle(self) -> None:
        """After a `receive`: make later work on the device see what came back."""
        ...

    def revoke(self) -> None:
        """The buckets are about to change: whoever else still reads them reads in vain."""
        ...

    def close(self) -> None:
        """Leave nothing running."""
        ...


def staging_for(
    sizes: Sequence[tuple[int, torch.dtype]], device: torch.device, codec: Codec | None = None
) -> Staging:
    """The way for buckets of these (elements, dtype) on this device; None for no codec."""
    if device.type == "cuda":
        return PinnedStaging(sizes, device, codec)
    return HostStaging(sizes, codec)


def _travels_as(dtype: torch.dtype, codec: Codec | None) -> torch.dtype:
    return dtype if codec is None else codec.travels_as(dtype)


class HostStaging:
    """Buckets in host memory: the ring works on the gradients themselves, or on wire buffers."""

    def __init__(self, sizes: Sequence[tuple[int, torch.dtype]], codec: Codec | None) -> None:
        self._memory = RingMemory([(count, _travels_as(dtype, codec)) for count, dtype in sizes])
        self._wires = self._memory.flats
        self._codecs: list[Codec | None] = []
        self.flats: list[Tensor] = []
        self.memories: list[BucketMemory] = []
        self.size_bytes = 0
        for (count, dtype), wire, memory in zip(
            sizes, self._wires, self._memory.memories, strict=True
        ):
            self.size_bytes += wire.nbytes
            used = codec if wire.dtype != dtype else None
            self._codecs.append(used)
            if used is None:
                self.flats.append(wire)
                self.memories.append(memory)
            else:
                flat = torch.zeros(count, dtype=dtype)
                self.flats.append(flat)
                self.memories.append(used.summed_at_home(wire, flat, memory))
                self.size_bytes += flat.nbytes

    def send(self, index: int, start: StartBucket) -> None:
        """Encode it into its wire buffer, if it has one, and hand that over."""
        codec = self._codecs[index]
        if codec is not None:
            codec.encode(index, self.flats[index], self._wires[index])
        start(index)

    def receive(self, index: int, wait: WaitForBucket) -> None:
        """Wait for it, and take what all ranks have, this one's own sums included."""
        wait(index)
        codec = self._codecs[index]
        if codec is not None:
            codec.decode(index, self._wires[index], self.flats[index])

    def settle(self) -> None:
        """Nothing is under way."""

    def revoke(self) -> None:
        """Lend under another number."""
        self._memory.revoke()

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
    """Buckets on a GPU, with a pinned wire buffer each; the GPU encodes and decodes."""

    def __init__(
        self, sizes: Sequence[tuple[int, torch.dtype]], device: torch.device, codec: Codec | None
    ) -> None:
        self.flats = [torch.zeros(count, dtype=dtype, device=device) for count, dtype in sizes]
        self.size_bytes = sum(flat.nbytes for flat in self.flats)
        self._device = device
        self._pinned = [
            torch.empty(count, dtype=_travels_as(dtype, codec), pin_memory=True)
            for count, dtype in sizes
        ]
        self._codecs: list[Codec | None] = []
        self.memories: list[BucketMemory] = []
        for wire, flat in zip(self._pinned, self.flats, strict=True):
            used = codec if wire.dtype != flat.dtype else None
            memory = bucket_memory(wire)
            self._codecs.append(used)
            self.memories.append(memory if used is None else used.summed_alone(wire, memory))
        self._stream: torch.cuda.Stream = _CUDA.Stream(device)
        self._copies = [_Copy() for _ in sizes]
        self._queue: queue.SimpleQueue[tuple[int, _Copy, StartBucket] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._hand_over, name="staging", daemon=True)
        self._thread.start()

    def send(self, index: int, start: StartBucket) -> None:
        """Queue the copy behind what fills the bucket, and the handing over behind the copy."""
        copy = self._copies[index] = _Copy()
        filled = _CUDA.Event()
        filled.record(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(filled)
            codec, flat, wire = self._codecs[index], self.flats[index], self._pinned[index]
            if codec is None:
                wire.copy_(flat, non_blocking=True)
            else:
                codec.encode(index, flat, wire)
            copy.done = _CUDA.Event(blocking=True)
            copy.done.record(self._stream)
        self._queue.put((index, copy, start))

    def receive(self, index: int, wait: WaitForBucket) -> None:
        """Wait for the sum, then queue the copy back."""
        copy = self._copies[index]
        copy.handed.wait()
        if copy.failure is not None:
            raise copy.failure
        wait(index)
        with torch.cuda.stream(self._stream):
            codec, flat, wire = self._codecs[index], self.flats[index], self._pinned[index]
            if codec is None:
                flat.copy_(wire, non_blocking=True)
            else:
                codec.decode(index, wire, flat)

    def settle(self) -> None:
        """The stream of the optimizer waits for the copies; the host does not."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def revoke(self) -> None:
        """The wire buffers are not lent."""

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
