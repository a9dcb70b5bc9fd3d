"""Fuzzer of a parameter server and a trainer: members send any chunk at any time.

A node gets chunks made of the fuzzer's bytes over all its links, between steps of its own that it
opens, starts and closes as it can.  Whatever comes is refused, waits, or goes where the node says:
within the bucket, and as long as announced.
"""

from __future__ import annotations

import contextlib
from typing import Final

from dtd.errors import LocalProtocolError, ProtocolError
from dtd.exchange.api import BucketMemory
from dtd.exchange.ring.chunks import Operation
from dtd.exchange.star.machine import Star
from dtd.exchange.star_node import StarNode
from dtd.wire.frames import Hold
from dtd.wire.messages import Chunk, Phase
from scripts.fuzz_links import Reader

WORLD: Final = 4
SERVERS: Final = 2
GENERATION: Final = 3
CHUNK_BYTES: Final = 8
BUCKET_BYTES: Final = 36
MAX_CHUNKS: Final = 64


class _Node:
    """A node that keeps what it sends to itself."""

    def __init__(self, rank: int) -> None:
        core = Star(
            rank=rank,
            world_size=WORLD,
            servers=SERVERS,
            generation=GENERATION,
            first_step=0,
            chunk_bytes=CHUNK_BYTES,
        )
        self.node = StarNode(core, self)

    def send_to(self, rank: int, chunk: Chunk, payload: memoryview) -> None:
        assert rank != self.node.core.seat.rank
        assert len(payload) <= CHUNK_BYTES

    def resume_link(self, rank: int) -> None:
        assert 0 <= rank < WORLD

    def star_bucket_done(self, bucket: int) -> None:
        assert bucket >= 0

    def act(self, reader: Reader) -> None:
        """Act as a training thread, if that is possible now."""
        with contextlib.suppress(LocalProtocolError):
            if reader.number(3):
                self.node.start(reader.number(4))
            else:
                step, kinds = self.node.core.step + 1, range(reader.number(5))
                self.node.open_step(step, [_bucket(reader) for _ in kinds], may_add=1)

    def receive(self, chunk: Chunk, payload_bytes: int, link: int) -> None:
        """A chunk has been announced."""
        with contextlib.suppress(ProtocolError):
            place = self.node.place(chunk, payload_bytes, link=link)
            if not isinstance(place, Hold):
                assert len(place) == payload_bytes
                self.node.received(chunk)


def _bucket(reader: Reader) -> BucketMemory:
    return BucketMemory(
        view=memoryview(bytearray(BUCKET_BYTES)),
        item_bytes=4,
        add=_add,
        operation=(Operation.REDUCE_SCATTER, Operation.ALL_GATHER)[reader.number(2)],
        copies=reader.number(3),
    )


def _add(start: int, stop: int, received: memoryview) -> None:
    assert 4 * (stop - start) == len(received)


def lie_to_a_star(data: bytes) -> int:
    """Members with good credentials send any chunk, in any order; returns how many."""
    reader = Reader(data)
    one, count = _Node(reader.number(WORLD)), 0
    while reader.left and count < MAX_CHUNKS:
        if not reader.number(3):
            one.act(reader)
        chunk = Chunk(
            generation=GENERATION - (not reader.number(16)),
            step=max(0, one.node.core.step + reader.number(3) - 1),
            phase=reader.choice((Phase.PUSH, Phase.SUMMED, Phase.PULL, *range(7))),
            hop=not reader.number(32),
            bucket=reader.number(5),
            chunk=reader.number(4),
            source=reader.number(WORLD + 1),
            loan=not reader.number(32),
        )
        payload_bytes = reader.choice((8, 8, 4, 0, 9))
        link = chunk.source if reader.number(16) else reader.number(WORLD)
        one.receive(chunk, payload_bytes, link)
        one.node.core.check_invariants()
        count += 1
    return max(count, 1)
