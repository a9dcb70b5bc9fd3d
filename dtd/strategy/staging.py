"""Moves a bucket from gradient memory to the memory that the ring reads, and back.

On a CPU both are the same memory (`dtd.strategy.wire_memory`).  On a GPU each bucket has a wire
buffer in pinned host memory.  A full bucket is copied there on a separate stream while backward is
running; a thread waits for the copy and then submits the bucket.  The sum is copied back on the
same stream.  Gradients are packed by `dtd.strategy.gradients`; this file is independent of
parameters.  `dtd.strategy.coded_buckets` handles buckets that are sent through a codec.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory
from dtd.strategy.codec.api import World
from dtd.strategy.codec.local_state import LocalState
from dtd.strategy.wire_memory import RingMemory, bucket_memory

_CUDA: Any = torch.cuda  # its constructors have no annotations
_WIDE = (torch.float32, torch.float64)

StartBucket = Callable[..., None]
"""Submits the bucket of this index; the second, optional argument is that of `Collective.start`."""
WaitForBucket = Callable[[int], None]
"""Blocks until the bucket of this index holds its sum."""


class Staging(Protocol):
    """Moves a step's gradient buckets to the ring and back.

    Attributes:
        flats: a flat tensor for the gradients of each bucket, on the model's device.
        memories: the exchanges of the current step, as the ring sees them.
    """

    flats: list[Tensor]
    memories: list[BucketMemory]

    @property
    def size_bytes(self) -> int:
        """Memory of the buckets on the model's device."""
        ...

    @property
    def fits(self) -> bool:
        """Whether there is a codec that applies to at least one bucket."""
        ...

    def regroup(self, world: World) -> None:
        """A generation begins: revoke buckets that older ones may still be reading."""
        ...

    def exchanges(self, step: int) -> list[BucketMemory]:
        """Return the exchanges of the step that follows `step` committed ones, in order."""
        ...

    def begin(self, scale: float) -> None:
        """A step begins; its gradients are multiplied by `scale`."""
        ...

    def commit(self) -> None:
        """The step is committed: advance the local state."""
        ...

    def rollback(self) -> None:
        """The step is discarded or skipped: restore the local state."""
        ...

    def unsent(self, step: int) -> list[LocalState]:
        """Return this rank's residuals of earlier steps; the same number on all ranks."""
        ...

    def reset(self) -> None:
        """Memory holds another state: reset the local state to zero."""
        ...

    def send(self, index: int, start: StartBucket) -> None:
        """A bucket is full: arrange for `start(index)` to be called; returns immediately."""
        ...

    def receive(self, index: int, wait: WaitForBucket) -> None:
        """Call `wait(index)`, and copy the sum back to the gradients' memory."""
        ...

    def settle(self) -> None:
        """After a `receive`: make later work on the device wait for the results."""
        ...

    def norm(self, index: int) -> Tensor:
        """After `settle`: return the norm of a result, float64; not finite if an element is not."""
        ...

    def revoke(self) -> None:
        """The buckets are about to change: invalidate any concurrent read by a neighbour."""
        ...

    def close(self) -> None:
        """Stop all threads."""
        ...


def staging_for(sizes: Sequence[tuple[int, torch.dtype]], device: torch.device) -> Staging:
    """Return the staging for buckets of these (elements, dtype) that are sent unchanged."""
    return PinnedStaging(sizes, device) if device.type == "cuda" else HostStaging(sizes)


def norm_of(flat: Tensor) -> Tensor:
    """Return the norm of a flat tensor, float64; not finite if any element is not."""
    dtype = flat.dtype if flat.dtype in _WIDE else torch.float32
    norm: Tensor = torch.linalg.vector_norm(flat, dtype=dtype)
    return norm.double()


class Received:
    """The results of a step's buckets, and their global norm.

    Args:
        staging: the buckets.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._norms: list[Tensor] = []

    def wait(self, wait: WaitForBucket) -> None:
        """Block until every bucket holds its result.

        The norm of each bucket is computed while the next one is still being exchanged.
        """
        self._norms = []
        for index in range(len(self._staging.flats)):
            self._staging.receive(index, wait)
            self._staging.settle()
            self._norms.append(self._staging.norm(index))

    def norm(self) -> float:
        """Return the norm of all results; not finite if any element of them is not."""
        return math.hypot(*torch.stack(self._norms).tolist()) if self._norms else 0.0


class _Stateless:
    """One exchange for each bucket, the same in every step; keeps no state between steps."""

    flats: list[Tensor]
    memories: list[BucketMemory]
    fits = True  # there is no codec that could find nothing

    def regroup(self, world: World) -> None:
        """Revoke the buckets; nothing depends on the world."""
        del world
        self.revoke()

    def exchanges(self, step: int) -> list[BucketMemory]:
        """Return one exchange for each bucket."""
        del step
        return self.memories

    def begin(self, scale: float) -> None:
        """There is no local state."""

    def commit(self) -> None:
        """There is no local state."""

    def rollback(self) -> None:
        """There is no local state."""

    def reset(self) -> None:
        """There is no local state."""

    def unsent(self, step: int) -> list[LocalState]:
        """There is no local state."""
        del step
        return []

    def norm(self, index: int) -> Tensor:
        """Return the norm of a result, float64; not finite if any element is not."""
        return norm_of(self.flats[index])

    def revoke(self) -> None:
        """No memory is shared."""


class HostStaging(_Stateless):
    """Buckets in host memory: the ring works on the gradients themselves."""

    def __init__(self, sizes: Sequence[tuple[int, torch.dtype]]) -> None:
        self._memory = RingMemory(sizes)
        self.flats = self._memory.flats
        self.memories = self._memory.memories
        self.size_bytes = sum(flat.nbytes for flat in self.flats)

    def send(self, index: int, start: StartBucket) -> None:
        """Submit the bucket."""
        start(index)

    def receive(self, index: int, wait: WaitForBucket) -> None:
        """Wait for the bucket."""
        wait(index)

    def settle(self) -> None:
        """There is no pending work."""

    def revoke(self) -> None:
        """Change the number of the shared memory's contents."""
        self._memory.revoke()

    def close(self) -> None:
        """Stop lending memory."""
        self._memory.close()


@dataclass(slots=True)
class _Copy:
    """One bucket's copy to the host in one step; each step has its own objects."""

    done: Any = None
    handed: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None


class PinnedStaging(_Stateless):
    """Buckets on a GPU, with a pinned wire buffer each."""

    def __init__(self, sizes: Sequence[tuple[int, torch.dtype]], device: torch.device) -> None:
        self.flats = [torch.zeros(count, dtype=dtype, device=device) for count, dtype in sizes]
        self.size_bytes = sum(flat.nbytes for flat in self.flats)
        self._device = device
        self._pinned = [torch.empty(count, dtype=dtype, pin_memory=True) for count, dtype in sizes]
        self.memories = [bucket_memory(wire) for wire in self._pinned]
        self._stream: torch.cuda.Stream = _CUDA.Stream(device)
        self._copies = [_Copy() for _ in sizes]
        self._queue: queue.SimpleQueue[tuple[int, _Copy, StartBucket] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._hand_over, name="staging", daemon=True)
        self._thread.start()

    def send(self, index: int, start: StartBucket) -> None:
        """Queue the copy after the work that fills the bucket, then the submission."""
        copy = self._copies[index] = _Copy()
        filled = _CUDA.Event()
        filled.record(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(filled)
            self._pinned[index].copy_(self.flats[index], non_blocking=True)
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
            self.flats[index].copy_(self._pinned[index], non_blocking=True)

    def settle(self) -> None:
        """Make the optimizer's stream wait for the copies; the host does not wait."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def close(self) -> None:
        """Stop the thread."""
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
