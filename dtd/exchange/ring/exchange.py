"""The exchange of a small bucket: every rank receives every contribution whole.

The latency path (protocol.md, "Exchange").  An all-reduce in segments takes 2 (N - 1) hops, and a
small bucket pays for hops, not for bytes.  Here it takes N - 1: in hop h rank r receives the whole
contribution of rank (r - h - 1) mod N and forwards it at once, even before its own is ready.  When
all N have arrived each rank sums them itself, in rank order, so all ranks end with the same bytes.
`dtd.exchange.ring.chunks.exchanged` selects these buckets by size and world alone, which every rank
knows.

Contributions are kept separately until the last has arrived, so each bucket has memory for N of
them, including its own: sent data must not change before the kernel has taken it, and the sum is
written to the bucket meanwhile.  The bucket plan bounds that memory, not the peers' behaviour, so
no frame is ever held for lack of memory.
"""

from __future__ import annotations

from dtd.exchange.ring.chunks import BucketShape
from dtd.exchange.ring.events import (
    BucketDone,
    ChunkReceived,
    Effect,
    InContributions,
    KeepOwn,
    SendContribution,
    SumContributions,
)
from dtd.exchange.ring.position import RingPosition, check_payload, refused
from dtd.wire.messages import Chunk, Phase


class ExchangedBucket:
    """One bucket of one step that travels whole.

    Args:
        seat: this rank's position.
        shape: the bucket's shape.
        step: the open step.
        index: the bucket's number in it.

    Attributes:
        started: this rank's own contribution is complete, and has been sent.
    """

    def __init__(self, seat: RingPosition, shape: BucketShape, *, step: int, index: int) -> None:
        self.started = False
        self._seat = seat
        self._size_bytes = shape.size_bytes
        self._step = step
        self._index = index
        self._placed: set[int] = set()
        self._received: set[int] = set()

    @property
    def done(self) -> bool:
        """Whether all contributions have arrived and been summed."""
        return self.started and len(self._received) == self._seat.hops

    def place(self, chunk: Chunk, payload_bytes: int) -> InContributions:
        """Return the place of an announced contribution.

        Raises:
            ProtocolError: it is not a contribution, or arrived before.
        """
        if chunk.phase != Phase.EXCHANGE:
            raise refused(chunk, "no such phase: the bucket travels whole")
        if chunk.hop >= self._seat.hops:
            raise refused(chunk, "no such hop")
        if chunk.chunk or chunk.hop in self._placed:
            raise refused(chunk, "a hop has one chunk, number 0, once")
        if chunk.loan:
            raise refused(chunk, "a bucket that travels whole is not shared")
        check_payload(chunk, payload_bytes, self._size_bytes)
        self._placed.add(chunk.hop)
        return InContributions(bucket=self._index, origin=self._origin(chunk.hop))

    def begin(self) -> list[Effect]:
        """Start the bucket: send this rank's contribution."""
        self.started = True
        own = self._send(0, self._seat.rank)
        return [KeepOwn(bucket=self._index), own, *self._finish()]

    def received(self, event: ChunkReceived) -> list[Effect]:
        """A contribution has arrived."""
        hop = event.chunk.hop
        self._received.add(hop)
        effects: list[Effect] = []
        if hop + 1 < self._seat.hops:
            effects.append(self._send(hop + 1, self._origin(hop)))
        return effects + self._finish()

    def waits_for(self) -> str:
        """The missing contributions, in words."""
        hops = range(self._seat.hops)
        missing = sorted(self._origin(hop) for hop in hops if hop not in self._received)
        return f"the contribution of rank {', '.join(map(str, missing))}"

    def check_invariants(self) -> None:
        """Raise AssertionError when it is inconsistent."""
        assert self._received <= self._placed
        assert len(self._placed) - len(self._received) <= 1

    def _origin(self, hop: int) -> int:
        return (self._seat.previous - hop) % self._seat.world_size

    def _send(self, hop: int, origin: int) -> SendContribution:
        header = self._seat.chunk(Phase.EXCHANGE, hop, step=self._step, bucket=self._index)
        return SendContribution(chunk=header, origin=origin)

    def _finish(self) -> list[Effect]:
        if not self.done:
            return []
        return [SumContributions(bucket=self._index), BucketDone(bucket=self._index)]
