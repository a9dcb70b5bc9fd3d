"""A few pieces of wire memory, which the exchanges of a step use in turn.

Stages 2 and 3 exchange more than they have memory for at a time.  The exchanges of a step use the
pieces in turn, each once the one before it in the same piece is complete and its result has been
copied to where it belongs.  So all exchanges can be declared when the step opens.

A piece is as large as the largest bucket that uses it.  Buckets far larger than most, such as that
of an embedding, share one piece of their own: four pieces of that size would often be more than the
gradients that are not kept.

This cannot deadlock.  Ranks start exchanges in order, and one waits for a piece only for the next
exchange, k.  So the first exchange that is not complete waits for nothing but computation: each
rank starts it eventually, and it completes.  Nor can the awaited exchange, the one before k in its
piece, which is the same one on all ranks, be held up on a link by a later one that this rank has
not started, of which there may be too many chunks to keep: that is k or a later one, which the
previous rank starts only when it has completed the awaited one; and then all it had to send for
that is ahead on the link.  A broken ring ends every wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory
from dtd.exchange.schedule.chunks import Operation
from dtd.strategy.codec.api import Codec, Coder, FlatLayout, World
from dtd.strategy.wire_memory import RingMemory, bucket_memory, laid_out

PIECES: Final = 4
"""For most buckets: one is filled while others are on their way; more would hide more of a slow
network."""

_FAR_LARGER: Final = 2
"""Than a size that three quarters of the buckets do not exceed."""


def usual_bytes(sizes: Sequence[int]) -> int:
    """Return the most bytes of a bucket in one of the `PIECES`; larger ones share another."""
    most = sorted(sizes)[3 * (len(sizes) - 1) // 4]
    return max(size for size in sizes if size <= _FAR_LARGER * most)


def pool_bytes(sizes: Sequence[int]) -> int:
    """Return the bytes of all pieces for buckets of these sizes."""
    usual, largest = usual_bytes(sizes), max(sizes)
    return PIECES * usual + (largest if largest > usual else 0)


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: an operation on a bucket."""

    operation: Operation
    bucket: int


@dataclass(slots=True, kw_only=True)
class _Prepared:
    """One exchange in its piece; the caller fills and reads `flat`."""

    turn: Turn
    piece: int
    flat: Tensor
    wire: Tensor
    memory: BucketMemory
    coder: Coder | None


class WirePool:
    """The wire memory of a step's exchanges."""

    def __init__(self, layouts: Sequence[FlatLayout], *, mirrors: int, codec: Codec | None) -> None:
        self._layouts = list(layouts)
        self._mirrors = mirrors
        self._codec = codec
        bucket_bytes = [one.elements * one.dtype.itemsize for one in layouts]
        usual, largest = usual_bytes(bucket_bytes), max(bucket_bytes)
        self._is_large = [size > usual for size in bucket_bytes]
        pieces = [usual] * PIECES + ([largest] if largest > usual else [])
        sizes = [(size, torch.uint8) for size in pieces]
        self._memory = RingMemory(sizes)
        # What a codec rounds is summed in full precision, beside the wire memory.
        self._flats = [torch.empty(count, dtype=dtype) for count, dtype in sizes] if codec else []
        self.size_bytes = sum(pieces) * (2 if codec else 1)
        self._known: dict[tuple[int, Turn], _Prepared] = {}
        self._prepared: list[_Prepared] = []
        self._before: list[int] = []
        self._start: Callable[[int], None] = _closed
        self._wait: Callable[[int], None] = _closed
        self._deliver: Callable[[int, Tensor], None] = _undeliverable
        self._started = self._finished = 0

    def regroup(self) -> None:
        """A generation begins: older ones cannot read the pieces any more."""
        self._memory.revoke()

    def exchanges(self, order: Sequence[Turn]) -> list[BucketMemory]:
        """Return the exchanges of a step, in this order."""
        self._prepared, self._before = [], []
        users: dict[int, int] = {}  # the last exchange of each piece
        usual = 0
        for at, turn in enumerate(order):
            number = PIECES if self._is_large[turn.bucket] else usual % PIECES
            usual += number < PIECES
            one = self._known.get((at, turn))
            if one is None or one.piece != number:
                one = self._known[at, turn] = self._prepare(turn, number)
            self._prepared.append(one)
            self._before.append(users.get(number, -1))
            users[number] = at
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

    def piece(self, index: int) -> Tensor | None:
        """Return the bucket of an exchange, to be filled.

        If it is the next one to be started, this blocks until its piece is free.

        Returns:
            None if another one comes first, and the piece is not free.
        """
        while self._finished <= self._before[index]:
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
        """Stop sharing memory."""
        self._memory.close()

    def _finish_one(self) -> None:
        index = self._finished
        self._wait(index)
        one = self._prepared[index]
        if one.coder is not None:
            one.coder.decode(one.flat, [one.wire])
        self._deliver(index, one.flat)
        self._finished += 1

    def _prepare(self, turn: Turn, number: int) -> _Prepared:
        """Lay a bucket out in a piece; each exchange has a coder of its own, which has state."""
        layout = self._layouts[turn.bucket]
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
            piece=number,
            flat=flat,
            wire=wire,
            memory=memory.shaped(operation=turn.operation, copies=self._mirrors),
            coder=coder,
        )


def _closed(index: int) -> None:
    raise AssertionError(f"exchange {index}, and no step is open")


def _undeliverable(index: int, result: Tensor) -> None:
    del result
    _closed(index)
