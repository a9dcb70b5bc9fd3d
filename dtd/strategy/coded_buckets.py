"""Flat buckets that are exchanged through a codec, or from a GPU: memory, threads, order.

A separate thread encodes and decodes, one bucket at a time, while backward is running, so that
neither the training thread nor the event loop has to.  It never blocks on the ring: `start` returns
immediately, and the ring reports a completed exchange by a callback that queues the next action.
On a GPU the thread uses its own stream and works on tensors there; only what is sent is copied, to
pinned host memory.

With dependent stages the exchanges interleave: stage s of bucket b is exchanged together with the
first stage of bucket b + s, in the same order on all ranks.  The ring begins exchanges in that
order, so none may depend on a later one; a stage depends only on earlier stages of its own bucket
(`dtd.exchange.schedule.machine`).  Only the last bucket comes after all others: it is full when
backward ends, and later stages of the others would wait until then, where nothing hides them.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory
from dtd.strategy.buckets import Buckets, HostBuckets, StartBucket, WaitForBucket, norm_of
from dtd.strategy.codec.api import Codec, Coder, FlatLayout, LocalState, Wire, World
from dtd.strategy.wire_memory import RingMemory, bucket_memory

_CUDA: Any = torch.cuda  # its constructors have no annotations
_ALONE: Final = World()


class Uncoded(Coder):
    """The coder of a bucket that is sent unchanged: its sum is exact to the bit."""

    def __init__(self, layout: FlatLayout) -> None:
        self._wires = [Wire(elements=layout.elements, dtype=layout.dtype)]

    def wires(self, world: World, step: int) -> Sequence[Wire]:
        del world, step
        return self._wires

    def encode(self, stage: int, flat: Tensor, wires: Sequence[Tensor]) -> None:
        wires[stage].copy_(flat, non_blocking=True)

    def decode(self, flat: Tensor, wires: Sequence[Tensor]) -> None:
        flat.copy_(wires[0], non_blocking=True)


@dataclass(slots=True)
class _Transfer:
    """Progress of one bucket in one step; an abandoned step leaves its object behind, marked void.

    Attributes:
        coder: the bucket's coder in this step.
        wires: the buffers of its stages.
        positions: indices of its stages among the exchanges.
        submitted: for each stage, set once it has been submitted.
        filled: on a GPU, the event after which the flat is full.
        decoded: set once the flat holds the result.
        norm: norm of the result.
        failure: why there will be no result.
        void: the step is over.
    """

    coder: Coder
    wires: list[Tensor]
    positions: list[int]
    submitted: list[threading.Event]
    filled: Any = None
    decoded: threading.Event = field(default_factory=threading.Event)
    norm: Tensor | None = None
    failure: BaseException | None = None
    void: bool = False


class CodedBuckets(Buckets):
    """Buckets that are encoded into memory of their own; backward's thread calls `send`, too."""

    def __init__(
        self, layouts: Sequence[FlatLayout], device: torch.device, codec: Codec | None
    ) -> None:
        super().__init__()
        self.flats = [torch.zeros(one.elements, dtype=one.dtype, device=device) for one in layouts]
        self.memories: list[BucketMemory] = []
        self._device = device
        self._start_step = codec.start_step if codec is not None else 0
        self._uncoded: list[Coder] = [Uncoded(layout) for layout in layouts]
        self._coders = list(self._uncoded)
        if codec is not None:
            made = [codec.coder(layout, index, device) for index, layout in enumerate(layouts)]
            self._coders = [
                uncoded if coder is None else coder
                for uncoded, coder in zip(self._uncoded, made, strict=True)
            ]
            self.fits = self._coders != self._uncoded
        self._world = _ALONE
        self._plans: list[list[Wire]] = []
        self._laid_out: list[tuple[tuple[int, int], Tensor, BucketMemory]] = []
        self._offered: RingMemory | None = None
        self._wires: list[list[Tensor]] = []
        self._positions: list[list[int]] = []
        self._used: list[Coder] = self._coders
        self._transfers: list[_Transfer] = []
        self._stream: Any = _CUDA.Stream(device) if device.type == "cuda" else None
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="codec", daemon=True)
        self._thread.start()

    @property
    def size_bytes(self) -> int:
        """Memory on the model's device: flats, local state and, on a CPU, wire buffers."""
        held: list[Tensor] = list(self.flats)
        if self._stream is None:
            held += [wire for wires in self._wires for wire in wires]
        return sum(t.nbytes for t in held) + sum(one.size_bytes for one in self._local())

    def _local(self) -> list[LocalState]:
        return [one for coder in self._coders for one in coder.local]

    # --- between steps ---------------------------------------------------------------------

    def regroup(self, world: World) -> None:
        self._abandon()
        self.revoke()
        self._world = world
        for coder in self._coders:
            coder.restart(world)

    def exchanges(self, step: int) -> list[BucketMemory]:
        self._used = self._uncoded if step < self._start_step else self._coders
        plans = [list(coder.wires(self._world, step)) for coder in self._used]
        if plans != self._plans:
            if _buffers_of(plans) != _buffers_of(self._plans):
                self._lay_out(plans)
            self.memories = [
                _as_exchanged(plans[bucket][stage], buffer, memory)
                for (bucket, stage), buffer, memory in self._laid_out
            ]
            self._plans = plans
        return self.memories

    def _lay_out(self, plans: Sequence[Sequence[Wire]]) -> None:
        """Allocate wire buffers for these plans; the previous ones are no longer offered."""
        order = exchange_order([len(plan) for plan in plans])
        buffers, memories = self._buffers([plans[bucket][stage] for bucket, stage in order])
        self._laid_out = list(zip(order, buffers, memories, strict=True))
        position = {at: index for index, at in enumerate(order)}
        self._positions = [
            [position[bucket, stage] for stage in range(len(plan))]
            for bucket, plan in enumerate(plans)
        ]
        self._wires = [[buffers[index] for index in one] for one in self._positions]

    def _buffers(self, wires: Sequence[Wire]) -> tuple[list[Tensor], list[BucketMemory]]:
        """Allocate memory that neighbours can read, or pinned memory if there is a GPU."""
        if self._stream is not None:
            pinned = [torch.zeros(w.elements, dtype=w.dtype, pin_memory=True) for w in wires]
            return pinned, [bucket_memory(one) for one in pinned]
        if self._offered is not None:
            self._offered.close()
        self._offered = RingMemory([(wire.elements, wire.dtype) for wire in wires])
        return self._offered.flats, self._offered.memories

    def unsent(self, step: int) -> list[LocalState]:
        if step <= self._start_step:
            return []
        return [coder.residual for coder in self._coders if coder.residual is not None]

    def reset(self) -> None:
        self._abandon()
        for one in self._local():
            one.reset()

    def revoke(self) -> None:
        if self._offered is not None:
            self._offered.revoke()

    def close(self) -> None:
        self._abandon()
        self._queue.put(None)
        self._thread.join()
        if self._offered is not None:
            self._offered.close()

    # --- a step ----------------------------------------------------------------------------

    def begin(self, scale: float) -> None:
        self._abandon()
        for one in self._local():
            one.begin(scale)
        self._transfers = [
            _Transfer(coder, wires, positions, [threading.Event() for _ in positions])
            for coder, wires, positions in zip(
                self._used, self._wires, self._positions, strict=True
            )
        ]

    def send(self, index: int, start: StartBucket) -> None:
        """A bucket is full: encode it, and submit its stages one after another."""
        transfer = self._transfers[index]
        if self._stream is not None:
            transfer.filled = _CUDA.Event()
            transfer.filled.record(torch.cuda.current_stream(self._device))
        self._queue.put(partial(self._encode, transfer, self.flats[index], 0, start))

    def receive(self, index: int, wait: WaitForBucket) -> None:
        transfer = self._transfers[index]
        for position, submitted in zip(transfer.positions, transfer.submitted, strict=True):
            submitted.wait()
            if transfer.failure is not None:
                raise transfer.failure
            wait(position)
        transfer.decoded.wait()
        if transfer.failure is not None:
            raise transfer.failure

    def settle(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _norm(self, index: int) -> Tensor:
        norm = self._transfers[index].norm
        assert norm is not None, "a norm is asked for before its bucket is received"
        return norm

    def commit(self) -> None:
        for one in self._local():
            one.commit()

    def rollback(self) -> None:
        self._abandon()
        for one in self._local():
            one.rollback()

    def _abandon(self) -> None:
        """Abandon work that is still in progress; returns once the thread has finished with it."""
        for transfer in self._transfers:
            transfer.void = True
        self._transfers = []
        idle = threading.Event()
        self._queue.put(idle.set)
        idle.wait()

    # --- the codec's thread ----------------------------------------------------------------

    def _work(self) -> None:
        if self._stream is not None:
            torch.cuda.set_device(self._device)
        while (work := self._queue.get()) is not None:
            with torch.no_grad(), self._on_stream():
                work()

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        if self._stream is None:
            return contextlib.nullcontext()
        return torch.cuda.stream(self._stream)

    def _encode(self, transfer: _Transfer, flat: Tensor, stage: int, start: StartBucket) -> None:
        """Encode and submit a stage; the next action is queued when its result arrives."""
        if transfer.void:
            return
        last = stage + 1 == len(transfer.positions)
        then = (
            partial(self._decode, transfer, flat)
            if last
            else partial(self._encode, transfer, flat, stage + 1, start)
        )
        try:
            if transfer.filled is not None:
                self._stream.wait_event(transfer.filled)
            transfer.coder.encode(stage, flat, transfer.wires)
            if self._stream is not None:
                encoded = _CUDA.Event(blocking=True)
                encoded.record(self._stream)
                encoded.synchronize()
            start(transfer.positions[stage], partial(self._queue.put, then))
        except BaseException as error:  # noqa: BLE001 - raised again in the training thread
            _fail(transfer, error)
        transfer.submitted[stage].set()

    def _decode(self, transfer: _Transfer, flat: Tensor) -> None:
        if transfer.void:
            return
        try:
            transfer.coder.decode(flat, transfer.wires)
            transfer.norm = norm_of(flat)
        except BaseException as error:  # noqa: BLE001 - raised again in the training thread
            _fail(transfer, error)
        transfer.decoded.set()


def _fail(transfer: _Transfer, error: BaseException) -> None:
    transfer.failure = error
    for event in (*transfer.submitted, transfer.decoded):
        event.set()


def exchange_order(stages: Sequence[int]) -> list[tuple[int, int]]:
    """Return the exchanges (bucket, stage) of buckets with so many stages, in order."""
    last = len(stages) - 1
    return sorted(
        ((bucket, stage) for bucket, count in enumerate(stages) for stage in range(count)),
        key=lambda at: (at[0] == last, at[0] + at[1], at[1]),
    )


def _buffers_of(plans: Sequence[Sequence[Wire]]) -> list[list[Wire]]:
    """The wires without their arithmetic, which a codec may create anew in each step."""
    return [[replace(wire, arithmetic=None) for wire in plan] for plan in plans]


def _as_exchanged(wire: Wire, buffer: Tensor, memory: BucketMemory) -> BucketMemory:
    """Return a wire buffer as the ring sees it: with its items, operation and arithmetic."""
    memory = memory.shaped(operation=wire.operation)
    if wire.item_elements != 1:
        memory = memory.shaped(
            elements=wire.elements // wire.item_elements,
            item_bytes=wire.item_elements * memory.shape.item_bytes,
        )
        memory = replace(memory, dtype="")
    if wire.arithmetic is not None:
        memory = wire.arithmetic(buffer, memory)
    return memory


def make_buckets(
    layouts: Sequence[FlatLayout], device: torch.device, codec: Codec | None
) -> Buckets:
    """Return buckets of these layouts on a device; `codec` None sends them unchanged."""
    if codec is None and device.type == "cpu":
        return HostBuckets(layouts)
    return CodedBuckets(layouts, device, codec)
