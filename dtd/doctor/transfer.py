"""When the exchanges of a step's buckets are through, over a ring or a star.

Buckets are followed as the events of one rank, in order.  A codec has one thread.  It encodes a
bucket's first stage when the bucket is full, the next stage when the one before is through, and
decodes when the last one is: first come, first served.  The ring begins exchanges in their order of
travel; each occupies the links for its bytes alone, and is through its latencies later:

    link_k = max(link_k-1, encoded_k) + busy_k
    end_k  = link_k + late_k
    sum    busy_k = (N-1) * max(bytes_k / N / bandwidth, added_k / N)
                  + (N-1) * bytes_k / N / bandwidth
           late_k = 2 (N-1) * mean latency
    gather busy_k = (N-1) * bytes_k / N / bandwidth
           late_k = (N-1) * mean latency

where added_k is what one addition of the whole wire buffer takes.  A sum may be made in two halves,
the first of which takes N-1+m of these hops (`BucketShape.window` in
`dtd.exchange.schedule.chunks`).  With S parameter servers both halves go over the star: all of a
bucket up, later all of it down, at the rate that the narrowest of the links leaves a worker
(`Star`); S servers add N times what they own:

    half   busy_k = max(bytes_k / rate, N added_k / S)
           late_k = latency

and everything else goes round the ring of N + S ranks.  A small bucket that travels whole
(`dtd.exchange.schedule.chunks.exchanged`) takes

    busy_k = (N-1) * (bytes_k / bandwidth + added_k)
    late_k = hops * latency

since each rank sends and receives N-1 copies, and the control word hops * latency, with the hops of
the tree (`dtd.exchange.schedule.tree.most_hops`).

What costs nothing to encode or to decode does not wait for the thread: without a codec nothing
does.

Where links code what they send (`sync.lossless`), the bandwidth is that of bytes before coding: a
byte takes its share of the link's time, or the coder's time if that is longer
(`dtd.exchange.schedule.coding_choice`).  The slowest link stands for all.  Stars are computed
without.  Pure; times in seconds.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dtd.exchange.schedule.chunks import BucketShape, Operation, exchanged
from dtd.exchange.schedule.coding_choice import BEGIN_GAIN, Mode, coded_s
from dtd.exchange.schedule.crossover import whole_bytes
from dtd.exchange.schedule.tree import most_hops


@dataclass(frozen=True, slots=True, kw_only=True)
class Coder:
    """Lossless coding of some payloads on a link, in the slowest worker.

    Attributes:
        share: of the bytes that is left.
        bytes_per_s: rate of encoding, or of decoding if that is slower; of bytes before coding.
    """

    share: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One stage of a bucket, as it travels.

    Attributes:
        bucket: its index; its stages are its exchanges, in their order.
        gathers: every rank gives its own part of the buffer; otherwise all give the whole, summed.
        scatters: the sum of a segment arrives at its owner and `copies` more ranks.
        copies: of what is gathered, ranks that have it beside its owner.
        encode_s: time for writing the buffer.
        add_s: time for one addition of a whole buffer.
        coder: of its payloads on links that code; None: they travel as they are.
    """

    bucket: int
    size_bytes: int
    gathers: bool = False
    scatters: bool = False
    copies: int = 0
    encode_s: float = 0.0
    add_s: float = 0.0
    coder: Coder | None = None

    @property
    def operation(self) -> Operation:
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
        decode_s: for each bucket, time for reading the last result.
    """

    exchanges: tuple[Exchange, ...]
    decode_s: tuple[float, ...]

    @classmethod
    def plain(cls, bucket_bytes: Sequence[int], coder: Coder | None = None) -> Coded:
        """Buckets that travel without a codec."""
        exchanges = [
            Exchange(bucket=index, size_bytes=size, coder=coder)
            for index, size in enumerate(bucket_bytes)
        ]
        return cls(exchanges=tuple(exchanges), decode_s=(0.0,) * len(exchanges))


@dataclass(frozen=True, slots=True, kw_only=True)
class Star:
    """The limits of an exchange over parameter servers.

    Attributes:
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
    """The limits of an exchange.

    Attributes:
        latency_s: of the link with the highest one.
        bytes_per_s: of the slowest link.
        star: the star besides, which carries the halves of sums; None without servers.
    """

    latency_s: float
    mean_latency_s: float
    bytes_per_s: float
    lossless: Mode = "off"
    star: Star | None = None

    def ranks(self, world_size: int) -> int:
        return world_size + (self.star.servers if self.star is not None else 0)

    def codes(self, coder: Coder | None) -> bool:
        if coder is None or self.lossless == "off":
            return False
        link_s = 1 / self.bytes_per_s
        is_faster = link_s >= BEGIN_GAIN * coded_s(link_s, coder.share, 1 / coder.bytes_per_s)
        return is_faster or self.lossless == "on"

    def byte_s(self, coder: Coder | None) -> float:
        """Return the time of a byte before coding on its slowest link."""
        link_s = 1 / self.bytes_per_s
        if coder is None or not self.codes(coder):
            return link_s
        return coded_s(link_s, coder.share, 1 / coder.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The time that an exchange needs of the links.

    Attributes:
        busy_s: in which its bytes occupy them.
        late_s: latencies on its way, in which they carry other exchanges.
    """

    busy_s: float
    late_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEstimate:
    """The times and bytes of a step's buckets on their way.

    Attributes:
        end_s: when the last one is read.
        comm_s: time on the wire, and the longest latencies of an exchange.
        sent_bytes: by one rank, after coding.
    """

    end_s: float
    comm_s: float
    sent_bytes: float


def estimate_transfer(
    ready_s: Sequence[float], coded: Coded, ring: Ring, world_size: int
) -> TransferEstimate:
    """Follow the buckets of one step."""
    wires, sent_bytes = [], 0.0
    ranks = ring.ranks(world_size)
    whole = _whole(coded, ring, ranks)
    for position, one in enumerate(coded.exchanges):
        if ring.star is not None and one.operation.is_half:
            wires.append(_star_wire(one, ring.star, world_size))
            sent_bytes += one.size_bytes if one.scatters else 0
            continue
        goes_whole = position in whole
        wires.append(_wire(one, ring, ranks, whole=goes_whole))
        share = one.coder.share if one.coder is not None and ring.codes(one.coder) else 1.0
        copies = ranks - 1 if goes_whole else sum(one.hops(ranks)) / ranks
        sent_bytes += copies * one.size_bytes * share
    comm_s = sum(one.busy_s for one in wires) + max((one.late_s for one in wires), default=0.0)
    end_s = _last_s(ready_s, coded, wires)
    return TransferEstimate(end_s=end_s, comm_s=comm_s, sent_bytes=sent_bytes)


def _whole(coded: Coded, ring: Ring, world_size: int) -> frozenset[int]:
    """Exchanges that travel whole, once links have shown their latency and rate."""
    carried_bytes = min(ring.mean_latency_s * min(ring.bytes_per_s, sys.float_info.max), 1e9)
    most_bytes = whole_bytes(world_size, most_hops(world_size), hop_bytes=int(carried_bytes))
    shapes = [
        BucketShape(elements=one.size_bytes, item_bytes=1, operation=one.operation)
        for one in coded.exchanges
    ]
    return exchanged(shapes, world_size=world_size, chunk_bytes=most_bytes, whole_bytes=most_bytes)


def _star_wire(one: Exchange, star: Star, world_size: int) -> Wire:
    if one.gathers:
        moved_s = one.size_bytes / star.down_bytes_per_s
    else:
        moved_s = one.size_bytes / star.up_bytes_per_s
        moved_s = max(moved_s, world_size * one.add_s / star.servers)
    return Wire(busy_s=moved_s, late_s=star.latency_s)


def _wire(one: Exchange, ring: Ring, world_size: int, *, whole: bool) -> Wire:
    """Return the time around the ring, or down the trees if it travels whole."""
    whole_s = one.size_bytes * ring.byte_s(one.coder)
    if whole:
        copies_s = (world_size - 1) * (whole_s + one.add_s)
        return Wire(busy_s=copies_s, late_s=most_hops(world_size) * ring.latency_s)
    added, passed = one.hops(world_size)
    pass_s = whole_s / world_size
    add_s = max(pass_s, one.add_s / world_size)
    return Wire(
        busy_s=added * add_s + passed * pass_s, late_s=(added + passed) * ring.mean_latency_s
    )


def _last_s(ready_s: Sequence[float], coded: Coded, wires: Sequence[Wire]) -> float:
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
            link_s = max(link_s, encoded_s[position]) + wires[position].busy_s
            through = coded.exchanges[position].bucket
            end_s = link_s + wires[position].late_s
            heapq.heappush(waiting, (end_s, through, stages[through].index(position) + 1))
            position += 1
    return last_s
