"""Forecast of the step time with N workers, from measurements of workers and links.

The exchange of a bucket starts when the backward pass has filled it on every rank.  Exchanges share
the links: while the bytes of one are on their way, those of others are sent.  All of them wait for
the slowest link, so the lowest bandwidth counts; but a segment crosses one link after another, so
latencies of the ring count by their mean, and down a tree by the highest.  Then the control word
travels to all ranks down trees, and the optimizer runs.  With local steps, the change of the model
is exchanged once per several steps, and each step bears an equal share of that time: all of the
share if training waits for the exchange, or only the part that the following steps do not hide if
they overlap with it.  Where the state is divided, gradients are reduce-scattered during the
backward pass, and the parameters are gathered while the next step loads its rows and runs forward,
which needs the first bucket at once.  Parameter servers own what is divided, and their star carries
both halves.  The limit is the part of the step whose cost, if it were zero, would shorten the step
most.

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
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

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
        size_bytes: of the wire buffer.
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
    """The limits of an exchange.

    Attributes:
        latency_s: of the link with the highest one.
        mean_latency_s: of all links.
        bytes_per_s: of the slowest link.
        lossless: whether its slowest link codes.
        star: the star besides, which carries the halves of sums; None without servers.
    """

    latency_s: float
    mean_latency_s: float
    bytes_per_s: float
    lossless: Mode = "off"
    star: Star | None = None

    def ranks(self, world_size: int) -> int:
        """Return how many ranks it has with so many workers."""
        return world_size + (self.star.servers if self.star is not None else 0)

    def codes(self, coder: Coder | None) -> bool:
        """Whether payloads are coded on its slowest link."""
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
    """Return the time over the servers."""
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
            link_s = max(link_s, encoded_s[position]) + wires[position].busy_s
            through = coded.exchanges[position].bucket
            end_s = link_s + wires[position].late_s
            heapq.heappush(waiting, (end_s, through, stages[through].index(position) + 1))
            position += 1
    return last_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """One worker's own part of a step.

    Attributes:
        data_s: time spent waiting for its rows.
        compute_s: forward and backward pass, until the last bucket is submitted.
        ready_s: time at which each bucket is full, from the arrival of the rows.
        optimizer_s: time from the last bucket's sum to the committed step.
    """

    data_s: float
    compute_s: float
    ready_s: tuple[float, ...]
    optimizer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """One direction between two workers.

    Attributes:
        sender: name of the sending worker.
        receiver: name of the receiving worker.
        latency_s: one way, for a small message, from program to program.
        bytes_per_s: rate of a large transfer.
        lossless: whether it codes payloads.
    """

    sender: str
    receiver: str
    latency_s: float
    bytes_per_s: float
    lossless: Mode = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast for one world size.

    Attributes:
        world_size: number of workers.
        step_s: duration of the whole step.
        data_s, compute_s, exposed_s, optimizer_s: the parts of the step, whose sum is `step_s`;
            `exposed_s` is communication and codec time that is not hidden.
        comm_s: total communication time, hidden or not.
        sent_bytes: that one worker sends, after coding.
        coded: links code what they send.
        samples_per_s: rows of the global batch per second.
        limit: "compute", "data loading", "codec", "latency", "bandwidth of the link A -> B" or,
            with servers, "bandwidth of the link of A".
    """

    world_size: int
    step_s: float
    data_s: float
    compute_s: float
    exposed_s: float
    optimizer_s: float
    comm_s: float
    sent_bytes: int
    coded: bool
    samples_per_s: float
    limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """The exchanges of a strategy.

    Attributes:
        coded: how buckets are encoded.
        every_steps: 1: gradients, during the backward pass; more: the change of the model over this
            number of local steps, after them.
        overlaps: whether changes are exchanged while the next steps run.
        parameters: how the updated parameters are gathered, in the order of the forward pass; None
            where every rank computes all of them.
    """

    coded: Coded
    every_steps: int = 1
    overlaps: bool = False
    parameters: Coded | None = None


def forecast(
    workers: Sequence[Compute],
    links: Sequence[LinkSpeed],
    *,
    what: Exchanged,
    rows: int,
    star: Star | None = None,
) -> Forecast:
    """Forecast the step of a world.

    Args:
        workers: one entry for each rank.
        links: from each rank to the next one, servers last; none for a world of one.
        what: the exchanges; free of cost in a world of one.
        rows: rows of a global batch.
        star: the links with parameter servers; None without servers.
    """
    step = _step(workers, links, what, star)
    exposed_s, gone = _exposed(*step)
    step_s, compute, ring = step.duration_s(), step.compute, step.ring
    vote_s = most_hops(ring.ranks(step.world_size)) * ring.latency_s
    return Forecast(
        world_size=step.world_size,
        step_s=step_s,
        data_s=compute.data_s,
        compute_s=compute.compute_s,
        exposed_s=exposed_s,
        optimizer_s=compute.optimizer_s,
        comm_s=(gone.comm_s + vote_s) / what.every_steps,
        sent_bytes=int(gone.sent_bytes / what.every_steps),
        coded=any(ring.codes(one.coder) for one in what.coded.exchanges),
        samples_per_s=rows / step_s if step_s > 0 else 0.0,
        limit=_limit(step, links),
    )


def forecast_step_s(
    workers: Sequence[Compute],
    links: Sequence[LinkSpeed],
    *,
    what: Exchanged,
    star: Star | None = None,
) -> float:
    """Forecast the duration of a step and nothing else, in a seventh of the time."""
    return _step(workers, links, what, star).duration_s()


class _Step(NamedTuple):
    compute: Compute
    ring: Ring
    what: Exchanged
    world_size: int

    def duration_s(self) -> float:
        exposed_s, _ = _exposed(*self)
        compute = self.compute
        return compute.data_s + compute.compute_s + exposed_s + compute.optimizer_s


def _step(
    workers: Sequence[Compute], links: Sequence[LinkSpeed], what: Exchanged, star: Star | None
) -> _Step:
    ring = _ring(links, star)
    if ring.ranks(len(workers)) == 1:
        what = replace(what, coded=_free(what.coded))
    return _Step(slowest(workers), ring, what, len(workers))


def _ring(links: Sequence[LinkSpeed], star: Star | None) -> Ring:
    if not links:
        return Ring(latency_s=0.0, mean_latency_s=0.0, bytes_per_s=math.inf, star=star)
    narrow = min(links, key=lambda link: link.bytes_per_s)
    return Ring(
        latency_s=max(link.latency_s for link in links),
        mean_latency_s=fmean(link.latency_s for link in links),
        bytes_per_s=narrow.bytes_per_s,
        lossless=narrow.lossless,
        star=star,
    )


def _free(coded: Coded) -> Coded:
    """The same exchanges at no encoding or decoding cost."""
    exchanges = tuple(replace(one, encode_s=0.0, add_s=0.0) for one in coded.exchanges)
    return Coded(exchanges=exchanges, decode_s=(0.0,) * len(coded.decode_s))


def slowest(workers: Sequence[Compute]) -> Compute:
    """The slowest rank of each part of the step, for which all ranks wait."""
    return Compute(
        data_s=max(worker.data_s for worker in workers),
        compute_s=max(worker.compute_s for worker in workers),
        ready_s=tuple(max(ready) for ready in zip(*(w.ready_s for w in workers), strict=True)),
        optimizer_s=max(worker.optimizer_s for worker in workers),
    )


def _exposed(
    compute: Compute, ring: Ring, what: Exchanged, world_size: int
) -> tuple[float, TransferEstimate]:
    """(how long a step waits for communication and its codec, the exchanges of the buckets)."""
    local = what.every_steps > 1
    full_s = (compute.compute_s,) * len(compute.ready_s) if local else compute.ready_s
    gone = estimate_transfer(full_s, what.coded, ring, world_size)
    hops = most_hops(ring.ranks(world_size))
    late_s = max(0.0, gone.end_s - compute.compute_s) + hops * ring.latency_s
    share_s = late_s / what.every_steps
    if what.overlaps:
        share_s = max(0.0, share_s - compute.data_s - compute.compute_s - compute.optimizer_s)
    gathered = _gathered(what, ring, world_size)
    hidden_s = compute.data_s + min(compute.ready_s, default=0.0)
    share_s += max(_first_s(what, ring, world_size), gathered.end_s - hidden_s)
    both = TransferEstimate(
        end_s=gone.end_s,
        comm_s=gone.comm_s + gathered.comm_s,
        sent_bytes=gone.sent_bytes + gathered.sent_bytes,
    )
    return share_s, both


def _gathered(what: Exchanged, ring: Ring, world_size: int) -> TransferEstimate:
    """Follow the parameters that are gathered for a step."""
    coded = what.parameters or Coded.plain(())
    return estimate_transfer([0.0] * len(coded.decode_s), coded, ring, world_size)


def _first_s(what: Exchanged, ring: Ring, world_size: int) -> float:
    """Return when the parameters of the first layers are there, without which forward waits."""
    if what.parameters is None:
        return 0.0
    first = Coded(exchanges=what.parameters.exchanges[:1], decode_s=(0.0,))
    return estimate_transfer([0.0], first, ring, world_size).end_s


def _limit(step: _Step, links: Sequence[LinkSpeed]) -> str:
    """The part whose removal would shorten the step most."""
    compute, ring, what, _ = step
    idle = replace(
        compute, compute_s=0.0, optimizer_s=0.0, ready_s=tuple(0.0 for _ in compute.ready_s)
    )
    without = {
        "compute": step._replace(compute=idle),
        "data loading": step._replace(compute=replace(compute, data_s=0.0)),
        "codec": step._replace(what=replace(what, coded=_free(what.coded))),
    }
    if links:
        narrow = min(links, key=lambda link: link.bytes_per_s)
        infinite = replace(ring, bytes_per_s=math.inf)
        without[f"bandwidth of the link {narrow.sender} -> {narrow.receiver}"] = step._replace(
            ring=infinite
        )
        star = ring.star
        near = star and replace(star, latency_s=0.0)
        at_once = replace(ring, latency_s=0.0, mean_latency_s=0.0, star=near)
        without["latency"] = step._replace(ring=at_once)
        if star is not None:
            wide = replace(star, up_bytes_per_s=math.inf, down_bytes_per_s=math.inf)
            without[f"bandwidth of the link of {star.narrowest}"] = step._replace(
                ring=replace(ring, star=wide)
            )
    return min(without, key=lambda limit: without[limit].duration_s())
