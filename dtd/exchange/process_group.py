"""Buckets through torch.distributed (Gloo, or NCCL on GPUs); everything else on the ring.

This is `sync.transport = "gloo"` or "nccl".  The ring keeps its role: it determines the members,
carries small gathers, votes and the tail of each step, and detects within milliseconds that a
member is gone.  Only buckets of types that torch supports are exchanged in a process group.  A
group belongs to one generation: it is created when the generation's first step with buckets opens
in a thread of its own, since that blocks in C++, and abandoned when the ring breaks.  Any failure
in the group ends the generation, like a broken ring.  `dtd.exchange.group_backends` makes and ends
a rank's part of it.

The group works on its own memory.  An operation that outlives its generation writes there, and
never into gradients that the next generation computes.  The copies take 0.1 to 0.2 ms for each MiB
in each direction, in addition to the group's own work.

Gloo sums a bucket in segments, each in one order, and copies the sums, so all ranks end with the
same bytes; these differ from those of the ring.  The traffic is neither encrypted nor
authenticated.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import structlog
import torch
import torch.distributed as dist
from torch import Tensor

from dtd.errors import RingBroken
from dtd.exchange.api import BucketMemory, BusyTime, CommTiming
from dtd.exchange.group_backends import Group
from dtd.exchange.node import NodeCollective
from dtd.exchange.schedule.chunks import Operation
from dtd.observe.profile.spans import RingSpans, SpanLog

log = structlog.get_logger()

RING_GRACE_S: Final = 2.0
"""When a member dies, its connections in the group may end before the ring has identified it."""

OPERATION_TIMEOUT: Final = timedelta(days=365)
"""A rank may compute for any length of time; the ring detects whether it is alive."""

_CUDA: Any = torch.cuda  # its constructors have no annotations

DTYPES: Final = {
    name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")
}


_REDUCTIONS: Final = {
    Operation.SUM: dist.ReduceOp.SUM,
    Operation.MAXIMUM: dist.ReduceOp.MAX,
}
"""Operations that a group performs; reduce-scatter and all-gather use the ring.

A reduce-scatter whose sums are copied to all ranks is a sum.
"""


class ProcessGroupCollective:
    """One generation's collective: gradient buckets use a process group, everything else the ring.

    Called from the training thread; `start` from any.  See `dtd.exchange.api.Collective`.

    Args:
        ring: the generation's ring.
        group: creates this rank's part of the process group; called when the first step with
            buckets for it opens, and never if there is only one rank.
    """

    def __init__(self, ring: NodeCollective, group: Callable[[], Group]) -> None:
        self._ring = ring
        self._new_group = group
        self._group: Group | None = None
        self._backend: Any = None
        self._changed = threading.Condition()
        self._failure = ""
        self._ended = False
        self._pending: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._buckets: list[BucketMemory] = []
        self._views: dict[int, Tensor] = {}
        self._own: dict[int, Tensor] = {}
        self._on_ring: dict[int, int] = {}
        self._ready: set[int] = set()
        self._unissued: list[int] = []
        self._done: set[int] = set()
        self._when_done: dict[int, Callable[[], None]] = {}
        self._stream: Any = None
        self._finisher = threading.Thread(
            target=self._finish_all, name="process-group", daemon=True
        )
        self._busy = BusyTime()
        self._exposed_s = 0.0
        self._sent_bytes = 0

    @property
    def rank(self) -> int:
        return self._ring.rank

    @property
    def world_size(self) -> int:
        return self._ring.world_size

    @property
    def generation(self) -> int:
        return self._ring.generation

    def check(self) -> None:
        with self._leaving():
            self._ring.check()
            if self._failure:
                self._give_up()

    @contextlib.contextmanager
    def _leaving(self) -> Iterator[None]:
        """Stop writing to buckets once RingBroken is raised: the caller may then reuse them."""
        try:
            yield
        except RingBroken:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            raise

    # --- a step ------------------------------------------------------------------------------

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        with self._changed:
            self._buckets, self._views, self._on_ring = [], {}, {}
            self._ready, self._done, self._unissued = set(), set(), []
            self._when_done = {}
        self._busy, self._exposed_s, self._sent_bytes = BusyTime(), 0.0, 0
        on_ring = self._lay_out(buckets)
        with self._leaving():
            self._ring.open_step(step, on_ring, may_add)
            self._form_if_needed()

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        on_ring = self._lay_out(buckets)
        with self._leaving():
            self._ring.add(on_ring)
            self._form_if_needed()

    def _form_if_needed(self) -> None:
        if self._views and self._backend is None:
            self._form()

    def _lay_out(self, buckets: Sequence[BucketMemory]) -> list[BucketMemory]:
        """Number further buckets, and return those that use the ring.

        This depends on types, operations and the world size, which are equal on all ranks.
        """
        on_ring = []
        with self._changed:
            for index, bucket in enumerate(buckets, start=len(self._buckets)):
                self._buckets.append(bucket)
                if self._is_for_group(bucket):
                    dtype = DTYPES[bucket.dtype]
                    self._views[index] = torch.frombuffer(bucket.view, dtype=dtype)
                    self._unissued.append(index)
                else:
                    self._on_ring[index] = len(self._on_ring)
                    on_ring.append(bucket)
        return on_ring

    def _is_for_group(self, bucket: BucketMemory) -> bool:
        travels = bucket.dtype in DTYPES and self._reduction(bucket) is not None
        return self.world_size > 1 and travels and bucket.shape.elements > 0

    def _reduction(self, bucket: BucketMemory) -> Any:
        """Return what a group calls the bucket's operation; None if it has no such operation."""
        operation = bucket.shape.operation
        if operation is Operation.REDUCE_SCATTER and bucket.shape.copies >= self.world_size - 1:
            operation = Operation.SUM
        return _REDUCTIONS.get(operation)

    def start(self, bucket: int, done: Callable[[], None] | None = None) -> None:
        """Submit a full bucket; those of the group are issued in index order on all ranks."""
        self.check()
        now = time.monotonic()
        with self._changed:
            self._busy.begin(now)
            if bucket not in self._on_ring:
                self._ready.add(bucket)
                if done is not None:
                    self._when_done[bucket] = done
                while self._unissued and self._unissued[0] in self._ready and not self._ended:
                    self._issue(self._unissued.pop(0))
                return
        with self._leaving():
            self._ring.start(self._on_ring[bucket], done)

    def wait(self, bucket: int) -> None:
        begun_s = time.monotonic()
        with self._leaving():
            if bucket in self._on_ring:
                self._wait_for_ring(bucket)
            else:
                self._wait_for_group(bucket)
        self._exposed_s += time.monotonic() - begun_s

    def _wait_for_ring(self, bucket: int) -> None:
        self._ring.wait(self._on_ring[bucket])
        with self._changed:
            if bucket not in self._done:
                self._done.add(bucket)
                self._busy.end(time.monotonic())

    def _wait_for_group(self, bucket: int) -> None:
        with self._ring.waiting(), self._changed:
            self._changed.wait_for(
                lambda: bucket in self._done or bool(self._failure) or self._ended
            )
            here = bucket in self._done
        if not here:
            self._give_up()

    def gather(self, entry: bytes) -> list[bytes]:
        begun_s = time.monotonic()
        with self._changed:
            self._busy.begin(begun_s)
        with self._leaving():
            entries = self._ring.gather(entry)
        ended_s = time.monotonic()
        with self._changed:
            self._busy.end(ended_s)
        self._exposed_s += ended_s - begun_s
        return entries

    def agreed(self) -> None:
        self._ring.agreed()

    def record(self, waits: SpanLog | None, ring: RingSpans | None) -> None:
        """Record the ring that the group rests on, which carries small gathers."""
        self._ring.record(waits, ring)

    def close_step(self) -> CommTiming:
        """End the open step.

        The bytes sent by a group are not known; those of a ring all-reduce are counted instead.
        """
        timing = self._ring.close_step()
        return CommTiming(
            busy_s=self._busy.busy_s,
            exposed_s=self._exposed_s,
            sent_bytes=timing.sent_bytes + self._sent_bytes,
        )

    # --- the group ---------------------------------------------------------------------------

    def _form(self) -> None:
        """Create the generation's group, together with all other ranks."""
        ring, group = self._ring, self._new_group()
        outcome = self._make(group, ring.gather(group.place()))
        if isinstance(outcome, Exception):
            reason = (
                f"the process group could not be made: rank {ring.rank}:"
                f" {type(outcome).__name__}: {outcome}"
            )
            ring.give_up(reason)
            raise RingBroken(reason) from outcome
        self._backend = outcome
        ring.gather(b"")  # all ranks have made theirs
        self._group = group
        if group.device.type == "cuda":
            self._stream = _CUDA.Stream(group.device)
        self._finisher.start()
        ring.on_broken(self._on_broken)
        log.info("process_group_formed", generation=ring.generation, world_size=ring.world_size)

    def _make(self, group: Group, places: list[bytes]) -> Any:
        outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def make() -> None:
            outcome: Any
            try:
                outcome = group.make(places)
            except Exception as error:  # noqa: BLE001 - C++ may raise anything
                outcome = error
            with self._changed:
                if not self._ended:
                    outcomes.put(outcome)
                    return
            group.end(None if isinstance(outcome, Exception) else outcome)

        self._ring.on_broken(lambda: outcomes.put(None))
        threading.Thread(target=make, name="process-group", daemon=True).start()
        with self._ring.waiting():
            outcome = outcomes.get()
        if outcome is None:
            with self._changed:
                self._ended = True
            while not outcomes.empty():
                group.end(outcomes.get())
            self._ring.check()
        return outcome

    def _work_area(self) -> contextlib.AbstractContextManager[Any]:
        """Context in which copies and operations are queued: a separate stream on a GPU."""
        if self._stream is None:
            return contextlib.nullcontext()
        return torch.cuda.stream(self._stream)

    def _issue(self, bucket: int) -> None:
        """Queue a bucket's operation; called with the lock held, in index order."""
        options = dist.AllreduceOptions()
        options.reduceOp = self._reduction(self._buckets[bucket])
        options.timeout = OPERATION_TIMEOUT
        own, view = self._own_memory(bucket), self._views[bucket]
        size = self.world_size
        self._sent_bytes += 2 * (size - 1) * view.nbytes // size
        try:
            with self._work_area():
                own.copy_(view, non_blocking=True)
                work = self._backend.allreduce([own], options)
        except RuntimeError as error:  # the group has been ended, or cannot do this at all
            self._failure = str(error) or type(error).__name__
            self._changed.notify_all()
        else:
            self._pending.put((bucket, work))

    def _own_memory(self, bucket: int) -> Tensor:
        """Return the group's memory for a bucket; every step uses the same memory."""
        view, own = self._views[bucket], self._own.get(bucket)
        if own is None or own.numel() != view.numel() or own.dtype != view.dtype:
            assert self._group is not None
            own = self._own[bucket] = torch.empty_like(view, device=self._group.device)
        return own

    def _finish_all(self) -> None:
        """Wait for operations in a separate thread, and copy sums to their buckets.

        This thread holds the last reference to the group, so no other one blocks on its destructor.
        """
        failed = False
        while (pending := self._pending.get()) is not None:
            bucket, work = pending
            try:
                self._finish(bucket, work, failed=failed)
            except RuntimeError as error:
                failed = True
                with self._changed:
                    self._failure = self._failure or str(error) or type(error).__name__
                    self._changed.notify_all()
            del pending, work
        self._backend = None

    def _finish(self, bucket: int, work: Any, *, failed: bool) -> None:
        with self._work_area():
            work.wait()
            if self._stream is not None:
                self._stream.synchronize()
        with self._changed:
            if failed or self._ended:  # the bucket may belong to the next generation by now
                return
            self._views[bucket].copy_(self._own[bucket])
            self._done.add(bucket)
            self._busy.end(time.monotonic())
            done = self._when_done.pop(bucket, None)
            self._changed.notify_all()
        if done is not None:
            done()

    # --- the end -----------------------------------------------------------------------------

    def _on_broken(self) -> None:
        """Called on the event loop: end the group in a separate thread."""
        threading.Thread(target=self._end, name="process-group-end", daemon=True).start()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._own = {}  # frees all memory that no operation still holds
            self._changed.notify_all()
        assert self._group is not None
        try:
            self._group.end(self._backend)
        finally:
            self._pending.put(None)  # otherwise the thread that waits for operations never ends

    def _give_up(self) -> None:
        """The group has failed: report the member that the ring lost, or end the ring."""
        with self._ring.waiting(), self._changed:
            self._changed.wait_for(lambda: self._ended, RING_GRACE_S)
        self._ring.check()
        reason = f"the process group has failed: {self._failure}"
        self._ring.give_up(reason)
        raise RingBroken(reason)
