"""The shell of the ring machine in the simulation: buckets are lists of integers.

Rank r contributes `1 << r` to every element, so a sum shows which ranks it contains: after the
all-reduce the lower bits must be `(1 << world) - 1`, that is, every rank exactly once.  The bits
above are the sum of the values of all rows (`tests.sim.rows`).  The counterpart over bytes is
`dtd.exchange.node`; both drive `dtd.exchange.schedule.machine`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dtd.exchange.schedule.chunks import BucketShape
from dtd.exchange.schedule.effects import (
    BucketDone,
    Effect,
    GatherDone,
    InBucket,
    InContributions,
    InScratch,
    KeepOwn,
    Reduce,
    Resume,
    SendChunk,
    SendContribution,
    SendGather,
    SumContributions,
)
from dtd.exchange.schedule.machine import Machine
from dtd.wire.frames import Hold
from dtd.wire.messages import Chunk, SmallGather
from tests.sim.oracle import Oracle
from tests.sim.rows import RANK_BITS

ITEM_BYTES = 8
CHUNK_BYTES = 128
SCRATCH_SLOTS = 8
WORD_BYTES = 64


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame on a ring link; `roster_id` is only for the oracle."""

    roster_id: int
    message: Chunk | SmallGather
    payload: tuple[int, ...] | bytes


class RingNode:
    """One rank's node of one generation's ring.

    Args:
        core: the ring machine.
        roster_id: id of the ring's roster.
        oracle: is told of every accepted frame and every sum.
        send: sends a frame of the given size to a rank.
        resume: offers the held frame of a rank again.
        changed: called when a bucket or a small gather is complete.
        reached: called with phase and step of every chunk that arrives; returns False if the
            process has ended.
    """

    def __init__(
        self,
        core: Machine,
        *,
        roster_id: int,
        oracle: Oracle,
        send: Callable[[int, Frame, int], None],
        resume: Callable[[int], None],
        changed: Callable[[], None],
        reached: Callable[[int, int], bool],
    ) -> None:
        self.core = core
        self._roster_id = roster_id
        self._oracle = oracle
        self._send = send
        self._resume = resume
        self._changed = changed
        self._reached = reached
        self._buckets: list[list[int]] = []
        self._slots: dict[int, tuple[int, ...]] = {}
        self._contributions: dict[tuple[int, int], tuple[int, ...]] = {}
        self._words: dict[int, list[bytes]] = {}
        self._unfinished: set[int] = set()
        self._exchanged: list[bytes] | None = None

    # --- the trainer -----------------------------------------------------------------------

    def open_step(
        self, step: int, bucket_elements: Sequence[int], shares: Sequence[int] = ()
    ) -> None:
        """Begin a step in which this rank contributes one of `shares` to each bucket.

        They may be told later, by `contribute`.
        """
        self._buckets = [[0] * elements for elements in bucket_elements]
        self.contribute(shares)
        self._unfinished = set(range(len(self._buckets)))
        self._words = {rank: [] for rank in range(self.core.world_size)}
        shapes = tuple(
            BucketShape(elements=elements, item_bytes=ITEM_BYTES) for elements in bucket_elements
        )
        self._act(self.core.open_step(step, shapes))

    def contribute(self, shares: Sequence[int]) -> None:
        """Write this rank's contributions to the first buckets, none of which has been started."""
        for bucket, share in zip(self._buckets, shares, strict=False):
            bucket[:] = [share << RANK_BITS | 1 << self.core.rank] * len(bucket)

    def start(self, bucket: int) -> None:
        """Begin the reduction of a bucket whose own contribution is complete."""
        self._act(self.core.start(bucket))

    def offer(self, word: bytes) -> None:
        """Provide this rank's control word for the next gather."""
        self._exchanged = None
        self._words[self.core.rank].append(word)
        self._act(self.core.offer_gather())

    def buckets_done(self) -> bool:
        """Whether every bucket of the open step holds the sum."""
        return not self._unfinished

    def total(self) -> int:
        """The sum of the values of all ranks' rows, once the buckets are done."""
        return self.totals()[-1]

    def totals(self) -> list[int]:
        """The sum of all ranks' shares for each non-empty bucket, once the buckets are done."""
        return [bucket[-1] >> RANK_BITS for bucket in self._buckets if bucket]

    def words(self) -> list[bytes] | None:
        """All ranks' control words in rank order, once they have arrived."""
        return self._exchanged

    # --- the network -----------------------------------------------------------------------

    def receive(self, content: object, sender: int) -> bool:
        """Accept a frame from a neighbour with this rank; False if it is not its turn yet."""
        assert isinstance(content, Frame)
        message, payload = content.message, content.payload
        if isinstance(message, SmallGather):
            if isinstance(self.core.accept_gather(message, link=sender), Hold):
                return False
            assert isinstance(payload, bytes)
            self._oracle.accepted(self._roster_id, content.roster_id)
            self._words[message.origin].append(payload)
            self._act(self.core.gather_received(message))
            return True
        assert isinstance(payload, tuple)
        place = self.core.place(message, len(payload) * ITEM_BYTES, link=sender)
        if isinstance(place, Hold):
            return False
        if not self._reached(message.phase, message.step):
            return True
        self._oracle.accepted(self._roster_id, content.roster_id)
        slot = None
        if isinstance(place, InScratch):
            slot = place.slot
            self._slots[slot] = payload
        elif isinstance(place, InContributions):
            self._contributions[place.bucket, place.origin] = payload
        else:
            assert isinstance(place, InBucket), "nothing is lent between the simulation's hosts"
            self._buckets[place.bucket][place.start : place.stop] = payload
        self._act(self.core.received(message, slot))
        return True

    # --- effects ---------------------------------------------------------------------------

    def _act(self, effects: list[Effect]) -> None:
        self._oracle.ring(self.core)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendChunk):
            payload = tuple(self._buckets[effect.chunk.bucket][effect.start : effect.stop])
            self._transmit(effect.rank, effect.chunk, payload, len(payload) * ITEM_BYTES)
        elif isinstance(effect, Reduce):
            bucket = self._buckets[effect.bucket]
            for index, value in enumerate(self._slots.pop(effect.slot), effect.start):
                bucket[index] += value
        elif isinstance(effect, KeepOwn):
            own = tuple(self._buckets[effect.bucket])
            self._contributions[effect.bucket, self.core.rank] = own
        elif isinstance(effect, SendContribution):
            payload = self._contributions[effect.chunk.bucket, effect.origin]
            self._transmit(effect.rank, effect.chunk, payload, len(payload) * ITEM_BYTES)
        elif isinstance(effect, SumContributions):
            ranks = range(self.core.world_size)
            given = [self._contributions.pop((effect.bucket, rank)) for rank in ranks]
            self._buckets[effect.bucket][:] = map(sum, zip(*given, strict=True))
        elif isinstance(effect, SendGather):
            word = self._words[effect.gather.origin][effect.gather.sequence]
            self._transmit(effect.rank, effect.gather, word, WORD_BYTES)
        elif isinstance(effect, BucketDone):
            self._oracle.summed(self.core.world_size, self._buckets[effect.bucket])
            self._unfinished.remove(effect.bucket)
            self._changed()
        elif isinstance(effect, GatherDone):
            ranks = range(self.core.world_size)
            self._exchanged = [self._words[rank][effect.sequence] for rank in ranks]
            self._changed()
        else:
            assert isinstance(effect, Resume)
            self._resume(effect.rank)

    def _transmit(
        self, rank: int, message: Chunk | SmallGather, payload: tuple[int, ...] | bytes, size: int
    ) -> None:
        self._send(rank, Frame(self._roster_id, message, payload), 64 + size)
