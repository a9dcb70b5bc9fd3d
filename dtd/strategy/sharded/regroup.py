"""Moves the parts of a sharded state that change hands when a generation begins.

Each rank holds the parts of an earlier division of the state; a rank that has just joined holds
nothing but the common part.  The ranks exchange what they hold and plan from it what moves
(`dtd.engine.regroup`).  Where several hold it, they compare it before; then they send it
around the new ring.  It arrives in new slices; the old ones
remain until all ranks have agreed on the state, so that whatever breaks in between, the members
that are left can give what they could give before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from dtd.engine.control_word import compare, read_words
from dtd.engine.digests import Shared
from dtd.engine.regroup import RegroupPlan, RegroupWindow, plan_regroup
from dtd.engine.shards import ShardSet, united
from dtd.errors import ErrorCode, ProtocolError, RingBroken, ShardsMissing, UnreadableWord
from dtd.exchange.api import BucketMemory, Collective
from dtd.exchange.schedule.chunks import Operation
from dtd.strategy.sharded.state import Column, ShardedState
from dtd.strategy.wire_memory import batches, bucket_memory
from dtd.text.json_reader import read_json

_DIGEST_BYTES: Final = 16
_MAX_SHARDS_BYTES: Final = 64 * 1024


def regroup(
    state: ShardedState,
    ring: Collective,
    step: int,
    wanted: Callable[[int, ShardSet], Sequence[ShardSet]],
    compare: Callable[[Sequence[Shared]], None],
) -> int:
    """Give every rank the shards that it is to hold, as staged slices.

    Args:
        state: this rank's part; no slices are staged.
        ring: connects the ranks; no step is open.
        step: number of the next step of the ring.
        wanted: returns the segments that a rank is to hold, given its number and what it holds.
        compare: has all ranks compare these parts of their shards, within an open step.

    Returns:
        the number of the ring's next step after that.

    Raises:
        RingBroken: the generation is over, or its ranks do not hold all of the state together.
        DivergenceError: raised by `compare`; nothing has moved.
    """
    ring.open_step(step, [])
    held = _read(ring.gather(_word(state)))
    plan = _plan(held, [united(wanted(rank, one)) for rank, one in enumerate(held)])
    if plan.shared:
        compare(plan.shared)
    ring.close_step()
    old = [state.columns(bucket) for bucket in range(len(state.buckets()))]
    state.stage(wanted(ring.rank, state.holds))
    if not plan.windows:
        return step + 1
    transfers = [
        _Transfer(window, ring.rank, elements, old[bucket][name], new)
        for bucket, elements in enumerate(state.buckets())
        for name, new in state.columns(bucket).items()
        for window in plan.windows
    ]
    step += 1
    for batch in batches(transfers, lambda transfer: transfer.size_bytes):
        ring.open_step(step, [transfer.open() for transfer in batch])
        for number, transfer in enumerate(batch):
            transfer.fill()
            ring.start(number)
        for number, transfer in enumerate(batch):
            ring.wait(number)
            transfer.deliver()
        ring.close_step()
        step += 1
    return step


def _plan(held: Sequence[ShardSet], wanted: Sequence[ShardSet]) -> RegroupPlan:
    try:
        return plan_regroup(held, wanted)
    except ShardsMissing as error:
        raise RingBroken(f"the generation cannot start: {error}") from error


@dataclass(slots=True)
class _Transfer:
    """One window of one column: the buffer that travels, and its two ends."""

    window: RegroupWindow
    rank: int
    elements: int
    old: Column
    new: Column
    buffer: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))

    @property
    def size_bytes(self) -> int:
        return self.window.bounds(self.elements)[-1] * self.new.dtype.itemsize

    def open(self) -> BucketMemory:
        """Allocate the buffer, and return it as the ring sees it."""
        bounds = self.window.bounds(self.elements)
        self.buffer = torch.empty(bounds[-1], dtype=self.new.dtype)
        return bucket_memory(self.buffer).shaped(
            operation=Operation.ALL_GATHER,
            hops=self.window.hops,
            bounds=bounds,
        )

    def fill(self) -> None:
        """Write the elements that this rank sends; elements that have no such entry are zero."""
        for piece in self.window.gives(self.rank, self.elements):
            target = self.buffer[piece.at : piece.at + piece.stop - piece.start].zero_()
            for first, values in self.old.parts(piece.start, piece.stop):
                begin = first - piece.start
                target[begin : begin + values.numel()].copy_(values)

    def deliver(self) -> None:
        """Copy the elements that this rank receives to its new slices, and free the buffer."""
        for piece in self.window.takes(self.rank, self.elements):
            for first, values in self.new.parts(piece.start, piece.stop):
                begin = piece.at + first - piece.start
                values.copy_(self.buffer[begin : begin + values.numel()])
        self.buffer = torch.empty(0)


def _word(state: ShardedState) -> bytes:
    """Encode the shards that this rank holds, and a hash of the names of optimizer entries."""
    entries = json.dumps([f"{name} {dtype}" for name, dtype in state.entries().items()])
    content = hashlib.blake2b(entries.encode(), digest_size=_DIGEST_BYTES)
    return content.digest() + json.dumps(state.holds.to_wire()).encode()


def _read(words: Sequence[bytes]) -> list[ShardSet]:
    """Return the shards that each rank holds.

    Raises:
        RingBroken: ranks keep different entries of the optimizer, so their states differ.
        UnreadableWord: a rank's data cannot be read, or its optimizer keeps other entries than
            those of more than half of the ranks.
    """
    entries = [word[:_DIGEST_BYTES] for word in words]
    result = compare([(0, one) for one in entries])
    if result.dissenters and not result.majority:
        raise RingBroken("the optimizers of the ranks keep different entries")
    if result.dissenters:
        raise UnreadableWord(result.dissenters[0], "its optimizer keeps other entries than most")
    return read_words(words, _shards)


def _shards(word: bytes) -> ShardSet:
    try:
        numbers = read_json(word[_DIGEST_BYTES:], max_bytes=_MAX_SHARDS_BYTES)
    except ValueError as error:
        raise ProtocolError(ErrorCode.BAD_PAYLOAD, f"held shards: {error}") from error
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise ProtocolError(ErrorCode.BAD_PAYLOAD, "held shards are no list of integers")
    return ShardSet.from_wire(numbers)
