"""Times at which a step's buckets are back, coded or not: the events of one rank, in order.

A codec has one thread.  It encodes a bucket's first stage when the bucket is full, the next stage
when the one before is through, and decodes when the last one is: first come, first served.  The
ring begins exchanges in their order of travel, one after another:

    end_k  = max(end_k-1, encoded_k) + wire_k
    sum    wire_k = (N-1) * (max(bytes_k / N / bandwidth, added_k / N) + latency)
                  + (N-1) * (bytes_k / N / bandwidth + latency) + overhead
    gather wire_k = (N-1) * (bytes_k / N / bandwidth + latency) + overhead

where added_k is what one addition of the whole wire buffer takes.  A sum may be made in two halves,
the first of which takes N-1+m of these hops (`BucketShape.window` in
`dtd.exchange.schedule.chunks`). With S parameter servers both halves go over the star: all of a
bucket up, later all of it down, at the rate that the narrowest of the links leaves a worker
(`Star`); S servers add N times what they own:

    half   wire_k = max(bytes_k / rate, N added_k / S) + latency + overhead

and everything else goes round the ring of N + S ranks.  A small bucket that goes round whole
(`dtd.exchange.schedule.chunks.exchanged`) takes

    wire_k = (N-1) * (bytes_k / bandwidth + added_k + latency) + overhead

What costs nothing to encode or to decode does not wait for the thread: without a codec nothing
does.  Pure; times in seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from dtd.exchange.schedule.chunks import EXCHANGE_BYTES, BucketShape, Operation, exchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One stage of a bucket, as it travels.

    Attributes:
        bucket: its index; its stages are its exchanges, in their order.
        size_bytes: of the wire buffer.
        gathers: every rank gives its own part of the buffer; otherwise all give the whole, summed.
        scatters: the sum of a segment arrives at its owner and `copies` more ranks.
        copies: of what is gathered, ranks that have it beside its owner.
        encode_s: time for writing the buffer.
        add_s: time for one addition of a whole buffer.
    """

    bucket: int
    size_bytes: int
    gathers: bool = False
    scatters: bool = False
    copies: int = 0
    encode_s: float = 0.0
    add_s: float = 0.0

    @property
    def operation(self) -> Operation:
        """The ring's operation for it."""
        if self.gathers:
            return Operation.ALL_GATHER
        return Operation.REDUCE_SCATTER if self.scatters else Operation.SUM

    def hops(self, world_size: int) -> tuple[int, int]:
        """Return the hops in which segments are added, and those in which they are passed on."""
        summed = world_size - 1
        copies = min(self.copies, summed)
        if self.gathers:
            return 0, summed - copies
        return summed, copies if self.scatters else summed


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """The exchanges of a step's buckets.

    Attributes:
        exchanges: in their order of travel.
        decode_s: for each bucket, time for reading the last result.
    """

    exchanges: tuple[Exchange, ...]
    decode_s: tuple[float, ...]

    @classmethod
    def plain(cls, bucket_bytes: Sequence[int]) -> Coded:
        """Buckets that travel as they are."""
        exchanges = [
            Exchange(bucket=index, size_bytes=size) for index, size in enumerate(bucket_bytes)
        ]
        return cls(exchanges=tuple(exchanges), decode_s=(0.0,) * len(exchanges))


@dataclass(frozen=True, slots=True, kw_only=True)
class Star:
    """The limits of an exchange over parameter servers.

    Attributes:
        servers: how many there are.
        latency_s: of a link between a worker and a server.
        up_bytes_per_s: at which every worker can send at once.
        down_bytes_per_s: at which every worker can receive at once.
        narrowest: the member whose link limits both, for people.
    """

    servers: int
    latency_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    narrowest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The limits of an exchange: the least of all links.

    Attributes:
        latency_s: of a hop.
        bytes_per_s: of a hop.
        overhead_s: of an exchange, whatever its size.
        star: the star besides, which carries the halves of sums; None without servers.
    """

    latency_s: float
    bytes_per_s: float
    overhead_s: float
    star: Star | None = None

    def ranks(self, world_size: int) -> int:
        """Return how many ranks it has with so many workers."""
        return world_size + (self.star.servers if self.star is not None else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEstimate:
    """The times and bytes of a step's buckets on their way.

    Attributes:
        end_s: when the last one is read.
        comm_s: time on the wire.
        sent_bytes: by one rank.
    """

    end_s: float
    comm_s: float
    sent_bytes: int


def estimate_transfer(
    ready_s: Sequence[float], coded: Coded, ring: Ring, world_size: int
) -> TransferEstimate:
    """Follow the buckets of one step.

    Args:
        ready_s: when each bucket is full.
        coded: how they travel.
        ring: the way.
        world_size: number of workers.
    """
    wires_s, sent_bytes = [], 0
    ranks = ring.ranks(world_size)
    whole = _whole(coded, ranks)
    for position, one in enumerate(coded.exchanges):
        if ring.star is not None and one.operation.is_half:
            wires_s.append(_star_s(one, ring, ring.star, world_size))
            sent_bytes += one.size_bytes if one.scatters else 0
            continue
        goes_whole = position in whole
        wires_s.append(_wire_s(one, ring, ranks, whole=goes_whole))
        if goes_whole:
            sent_bytes += (ranks - 1) * one.size_bytes
        else:
            sent_bytes += sum(one.hops(ranks)) * one.size_bytes // ranks
    end_s = _last_s(ready_s, coded, wires_s)
    return TransferEstimate(end_s=end_s, comm_s=sum(wires_s), sent_bytes=sent_bytes)


def _whole(coded: Coded, world_size: int) -> frozenset[int]:
    """Exchanges that go round whole."""
    shapes = [
        BucketShape(
            elements=one.size_bytes,
            item_bytes=1,
            operation=one.operation,
        )
        for one in coded.exchanges
    ]
    return exchanged(shapes, world_size=world_size, chunk_bytes=EXCHANGE_BYTES)


def _star_s(one: Exchange, ring: Ring, star: Star, world_size: int) -> float:
    """Return the time from the first byte to the last, over the servers."""
    if one.gathers:
        moved_s = one.size_bytes / star.down_bytes_per_s
    else:
        moved_s = one.size_bytes / star.up_bytes_per_s
        moved_s = max(moved_s, world_size * one.add_s / star.servers)
    return moved_s + star.latency_s + ring.overhead_s


def _wire_s(one: Exchange, ring: Ring, world_size: int, *, whole: bool) -> float:
    """Return the time from the first byte to the last."""
    if whole:
        hop_s = one.size_bytes / ring.bytes_per_s + one.add_s + ring.latency_s
        return (world_size - 1) * hop_s + ring.overhead_s
    added, passed = one.hops(world_size)
    if not added + passed:
        return 0.0
    pass_s = one.size_bytes / world_size / ring.bytes_per_s
    add_s = max(pass_s, one.add_s / world_size)
    moved_s = added * (add_s + ring.latency_s) + passed * (pass_s + ring.latency_s)
    return moved_s + ring.overhead_s


def _last_s(ready_s: Sequence[float], coded: Coded, wires_s: Sequence[float]) -> float:
    """Return when the last bucket is read."""
    stages: list[list[int]] = [[] for _ in ready_s]
    for position, one in enumerate(coded.exchanges):
        stages[one.bucket].append(position)
    waiting = [(full_s, bucket, 0) for bucket, full_s in enumerate(ready_s)]
    heapq.heapify(waiting)
    encoded_s: dict[int, float] = {}
    thread_s = link_s = last_s = 0.0
    position = 0
    while waiting:
        done_s, bucket, stage = heapq.heappop(waiting)
        decodes = stage == len(stages[bucket])
        if decodes:
            cost_s = coded.decode_s[bucket]
        else:
            cost_s = coded.exchanges[stages[bucket][stage]].encode_s
        if cost_s:
            done_s = thread_s = max(thread_s, done_s) + cost_s
        if decodes:
            last_s = max(last_s, done_s)
            continue
        encoded_s[stages[bucket][stage]] = done_s
        while position in encoded_s:
            link_s = max(link_s, encoded_s[position]) + wires_s[position]
            through = coded.exchanges[position].bucket
            heapq.heappush(waiting, (link_s, through, stages[through].index(position) + 1))
            position += 1
    return last_s
