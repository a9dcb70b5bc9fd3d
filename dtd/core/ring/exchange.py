"""A small bucket on its way round the ring: every rank's contribution goes everywhere, whole.

The latency path (protocol.md, "Exchange").  An all-reduce in segments takes 2 (N - 1) hops, and a
small bucket pays for hops, not for bytes.  Here it takes N - 1: in hop h rank r receives the whole
contribution of rank (r - h - 1) mod N and sends it on at once, even before its own is ready.  When
all N are here each rank adds them up itself, in rank order, so all ranks end with the same bytes.
Which buckets travel so is `dtd.core.ring.chunks.exchanged`: sizes and world alone decide, and every
rank knows both.

Contributions are kept apart until the last is here, so each bucket has memory for N of them: its
own among them, because what is sent must not change before the kernel has taken it, and the sum is
written to the bucket meanwhile.  That memory is bounded by the bucket plan, never by what others
send, so nothing is ever held back for want of it.
"""

from __future__ import annotations

from dtd.core.ring.chunks import BucketShape
from dtd.core.ring.events import (
    BucketDone,
    ChunkReceived,
    Effect,
    InContributions,
    KeepOwn,
    SendContribution,
    SumContributions,
)
from dtd.core.ring.position import RingPosition, check_payload, refused
from dtd.wire.messages import Chunk, Phase


class ExchangedBucket:
    """One bucket of one step that travels whole.

    Args:
        seat: this rank's.
        shape: the bucket's.
        step: the open step.
        index: the bucket's number in it.

    Attributes:
        started: this rank's own contribution is complete, and has gone out.
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
        """All contributions are here and summed."""
        return self.started and len(self._received) == self._seat.hops

    def place(self, chunk: Chunk, payload_bytes: int) -> InContributions:
        """Say where an announced contribution goes.

        Raises:
            ProtocolError: it is none, or has come before.
        """
        if chunk.phase != Phase.EXCHANGE:
            raise refused(chunk, "no such phase: the bucket travels whole")
        if chunk.hop >= self._seat.hops:
            raise refused(chunk, "no such hop")
        if chunk.chunk or chunk.hop in self._placed:
            raise refused(chunk, "a hop has one chunk, number 0, once")
        if chunk.loan:
            raise refused(chunk, "what travels whole is not lent")
        check_payload(chunk, payload_bytes, self._size_bytes)
        self._placed.add(chunk.hop)
        return InContributions(bucket=self._index, origin=self._origin(chunk.hop))

    def begin(self) -> list[Effect]:
        """The bucket's turn has come: send our contribution."""
        self.started = True
        own = self._send(0, self._seat.rank)
        return [KeepOwn(bucket=self._index), own, *self._finish()]

    def received(self, event: ChunkReceived) -> list[Effect]:
        """A contribution is here."""
        hop = event.chunk.hop
        self._received.add(hop)
        effects: list[Effect] = []
        if hop + 1 < self._seat.hops:
            effects.append(self._send(hop + 1, self._origin(hop)))
        return effects + self._finish()

    def waits_for(self) -> str:
        """Which contributions are missing, in words."""
        hops = range(self._seat.hops)
        missing = sorted(self._origin(hop) for hop in hops if hop not in self._received)
        return f"the contribution of rank {', '.join(map(str, missing))}"

    def check_invariants(self) -> None:
        """Raise AssertionError when the books do not balance."""
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
