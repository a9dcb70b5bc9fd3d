"""A few pieces of wire memory, which the exchanges of a step use in turn.

Stages 2 and 3 exchange more than they have memory for at a time.  Exchange k of a step uses piece k
modulo the number of pieces, once exchange k minus that number is complete and its result has been
copied to where it belongs.  So all exchanges can be declared when the step opens.

This cannot deadlock.  Ranks start exchanges in order, and one waits for a piece only for the next
exchange, k.  So the first exchange that is not complete waits for nothing but computation: each
rank starts it eventually, and it completes.  Nor can the awaited exchange, k minus the number of
pieces, be held up on a link by a later one that this rank has not started, of which there may be
too many chunks to keep: that is k or a later one, which the previous rank starts only when it has
completed the awaited one; and then all it had to send for that is ahead on the link.  A broken ring
ends every wait.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from dtd.core.ring.chunks import Operation
from dtd.strategy.codec.api import Codec, Coder, FlatLayout, World
from dtd.strategy.wire_memory import RingMemory, bucket_memory, laid_out
from dtd.transport.api import BucketMemory

PIECES: Final = 4
"""One is filled while others are on their way; more would hide more of a slow network."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: an operation on a bucket."""

    operation: Operation
    bucket: int


@dataclass(slots=True, kw_only=True)
class _Prepared:
    """One exchange in its piece; `flat` is what the caller fills and gets."""

    turn: Turn
    flat: Tensor
    wire: Tensor
    memory: BucketMemory
    coder: Coder | None


class WirePool:
    """The wire memory of a step's exchanges.

    Args:
        layouts: of the buckets.
        mirrors: copies of each segment beside that of its owner.
        codec: rounds gradients when they leave a rank; None sends them unchanged.

    Attributes:
        size_bytes: memory of the pieces.
    """

    def __init__(self, layouts: Sequence[FlatLayout], *, mirrors: int, codec: Codec | None) -> None:
        self._layouts = list(layouts)
        self._mirrors = mirrors
        self._codec = codec
        most_bytes = max(one.elements * one.dtype.itemsize for one in layouts)
        sizes = [(most_bytes, torch.uint8)] * PIECES
        self._memory = RingMemory(sizes)
        # What a codec rounds is summed in full precision, beside the wire memory.
        self._flats = [torch.empty(count, dtype=dtype) for count, dtype in sizes] if codec else []
        self.size_bytes = most_bytes * (PIECES + len(self._flats))
        self._known: dict[tuple[int, Turn], _Prepared] = {}
        self._prepared: list[_Prepared] = []
        self._start: Callable[[int], None] = _closed
        self._wait: Callable[[int], None] = _closed
        self._deliver: Callable[[int, Tensor], None] = _undeliverable
        self._started = self._finished = 0

    def regroup(self) -> None:
        """A generation begins: older ones cannot read the pieces any more."""
        self._memory.revoke()

    def exchanges(self, order: Sequence[Turn]) -> list[BucketMemory]:
        """Return the exchanges of a step, in this order."""
        for at, turn in enumerate(order):
            if (at, turn) not in self._known:
                self._known[at, turn] = self._prepare(at, turn)
        self._prepared = [self._known[at, turn] for at, turn in enumerate(order)]
        return [one.memory for one in self._prepared]

    def begin(
        self,
        start: Callable[[int], None],
        wait: Callable[[int], None],
        deliver: Callable[[int, Tensor], None],
    ) -> None:
        """The step with these exchanges begins.

        Args:
            start: submits the exchange of this index.
            wait: blocks until it is complete.
            deliver: called with the index of a complete exchange and the bucket with its result,
                whose memory is then used again.
        """
        self._start, self._wait, self._deliver = start, wait, deliver
        self._started = self._finished = 0

    @property
    def started(self) -> int:
        """How many exchanges of the step have been started; they are in order."""
        return self._started

    def piece(self, index: int) -> Tensor | None:
        """Return the bucket of an exchange, to be filled.

        If it is the next one to be started, this blocks until its piece is free.

        Returns:
            None if another one comes first, and the piece is not free.
        """
        while self._finished <= index - PIECES:
            if index > self._started:
                return None
            self._finish_one()
        return self._prepared[index].flat

    def start(self) -> None:
        """The bucket of the next exchange is filled: submit it."""
        one = self._prepared[self._started]
        if one.coder is not None:
            one.coder.encode(0, one.flat, [one.wire])
        self._start(self._started)
        self._started += 1

    def finish(self, index: int) -> None:
        """Block until the results of all exchanges up to this one, included, are delivered."""
        assert index < self._started, "an exchange is awaited that was not started"
        while self._finished <= index:
            self._finish_one()

    def end(self) -> None:
        """The step is over."""
        self._start, self._wait, self._deliver = _closed, _closed, _undeliverable

    def close(self) -> None:
        """Stop lending memory."""
        self._memory.close()

    def _finish_one(self) -> None:
        index = self._finished
        self._wait(index)
        one = self._prepared[index]
        if one.coder is not None:
            one.coder.decode(one.flat, [one.wire])
        self._deliver(index, one.flat)
        self._finished += 1

    def _prepare(self, at: int, turn: Turn) -> _Prepared:
        """Lay a bucket out in its piece; each exchange has a coder of its own, which has state."""
        layout, number = self._layouts[turn.bucket], at % PIECES
        coder = None
        if self._codec is not None and turn.operation is Operation.REDUCE_SCATTER:
            coder = self._codec.coder(layout, turn.bucket, torch.device("cpu"))
        plan = None if coder is None else coder.wires(World(), 0)[0]
        dtype = layout.dtype if plan is None else plan.dtype
        wire = laid_out(self._memory.flats[number], layout.elements, dtype)
        memory = bucket_memory(wire, self._memory.memories[number].home)
        flat = wire
        if coder is not None:
            flat = laid_out(self._flats[number], layout.elements, layout.dtype)
        if plan is not None and plan.arithmetic is not None:
            memory = plan.arithmetic(wire, memory)
        return _Prepared(
            turn=turn,
            flat=flat,
            wire=wire,
            memory=dataclasses.replace(memory, operation=turn.operation, copies=self._mirrors),
            coder=coder,
        )


def _closed(index: int) -> None:
    raise AssertionError(f"exchange {index}, and no step is open")


def _undeliverable(index: int, result: Tensor) -> None:
    del result
    _closed(index)
