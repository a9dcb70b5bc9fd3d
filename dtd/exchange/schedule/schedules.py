"""Schedules: which segment of a bucket goes from which rank to which, and in which order.

A schedule is data about one rank (`Schedule`).  `dtd.exchange.schedule.machine` follows any of
them, chunk by chunk.  There are three, and all end with the same bytes on every rank:

- *Ring in segments* (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
  workstations", 2009; protocol.md, "All-reduce"): few bytes.  With N ranks a bucket is cut into N
  segments.  Numbered through reduce-scatter and all-gather, hop h of 2 (N - 1) moves segment
  (r - h) mod N out of rank r and (r - h - 1) mod N in; in the first N - 1 hops what comes is added,
  later it replaces.  An operation is a window of these hops (`BucketShape.window`).
- *Whole* (protocol.md, "Exchange"): few hops, for small buckets.  Every rank receives every
  contribution by its tree (`tree.py`), and sums them itself; hop h is at a distance of h + 1.
- *Star* (Li et al., "Scaling distributed machine learning with the parameter server", 2014;
  protocol.md, "Star"): the last S ranks are servers, server i owns segment i of S.  In a
  reduce-scatter every trainer *pushes* each segment to its owner, which adds the contributions in
  rank order and passes the sum to its mirrors as *summed*; in an all-gather every rank that does
  not hold a segment *pulls* it, unasked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dtd.engine.shards import Division
from dtd.errors import LocalProtocolError
from dtd.exchange.schedule.chunks import BucketShape, Operation, Segments, cut, exchanged
from dtd.exchange.schedule.tree import Tree
from dtd.wire.messages import Phase


@dataclass(frozen=True, slots=True)
class Transfer:
    """One segment on its way over one link, chunk by chunk.

    Attributes:
        peer: the rank at the other end.
        phase: as in a chunk's header.
        hop: likewise.
        segment: its number.
    """

    peer: int
    phase: Phase
    hop: int
    segment: int


@dataclass(frozen=True, slots=True)
class Arrival(Transfer):
    """A segment that comes from a peer.

    Attributes:
        adds: its chunks are added to the bucket; otherwise they replace what is there.
        onward: what each chunk is sent on as, once it is in the bucket.
        after: the arrival whose same chunk must have come before, by its index.
    """

    adds: bool = False
    onward: tuple[Transfer, ...] = ()
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """The part of one rank in the exchange of one bucket.

    Attributes:
        sends: what leaves when the bucket starts, their chunks in turn.
        arrivals: what comes.
        whole: the segments are the ranks' contributions, which are kept beside the bucket and
            summed at the end.
        at: index of an arrival by peer, phase and hop.
        following: the peers whose chunks may have waited for those of an arrival, by its index.
    """

    sends: tuple[Transfer, ...]
    arrivals: tuple[Arrival, ...]
    whole: bool = False
    at: dict[tuple[int, int, int], int] = field(init=False)
    following: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Index the arrivals."""
        indexed = list(enumerate(self.arrivals))
        at = {(one.peer, one.phase, one.hop): index for index, one in indexed}
        object.__setattr__(self, "at", at)
        following = {one.after: one.peer for one in self.arrivals if one.after is not None}
        object.__setattr__(self, "following", following)


def ring_in_segments(rank: int, world_size: int, window: range) -> Schedule:
    """The schedule of a rank for an operation that takes this window of 2 (N - 1) hops."""
    hops, before, after = world_size - 1, (rank - 1) % world_size, (rank + 1) % world_size

    def transfer(hop: int) -> Transfer:
        phase, phase_hop = divmod(hop, hops)
        return Transfer(after, Phase(phase), phase_hop, (rank - hop) % world_size)

    arrivals = []
    for hop in window:
        phase, phase_hop = divmod(hop, hops)
        onward = (transfer(hop + 1),) if hop + 1 in window else ()
        segment = (rank - hop - 1) % world_size
        adds = phase == Phase.REDUCE_SCATTER
        arrivals.append(Arrival(before, Phase(phase), phase_hop, segment, adds, onward))
    return Schedule((transfer(window.start),) if window else (), tuple(arrivals))


def in_whole(tree: Tree) -> Schedule:
    """The schedule of a rank for a bucket that travels whole; segment i is the part of rank i."""

    def onward(origin: int) -> tuple[Transfer, ...]:
        return tuple(
            Transfer(rank, Phase.EXCHANGE, distance - 1, origin)
            for rank, distance in tree.onward(origin)
        )

    arrivals = []
    for hop in range(tree.world_size - 1):
        origin = (tree.rank - hop - 1) % tree.world_size
        arrivals.append(
            Arrival(tree.source(origin), Phase.EXCHANGE, hop, origin, onward=onward(origin))
        )
    return Schedule(onward(tree.rank), tuple(arrivals), whole=True)


def star(rank: int, world_size: int, servers: int, shape: BucketShape) -> Schedule:
    """The schedule of a rank for a half that travels by the star; see `goes_by_star`."""
    division = Division(world_size=world_size, mirrors=shape.copies, servers=servers)
    trainers, held = world_size - servers, division.held(rank)
    own = rank - trainers if rank >= trainers else None
    if shape.operation is Operation.ALL_GATHER:
        pulls = tuple(
            Arrival(trainers + segment, Phase.PULL, 0, segment)
            for segment in range(servers)
            if segment not in held
        )
        if own is None:
            return Schedule((), pulls)
        pullers = (one for one in range(world_size) if own not in division.held(one))
        return Schedule(tuple(Transfer(one, Phase.PULL, 0, own) for one in pullers), pulls)
    if own is None:
        pushes = (Transfer(trainers + one, Phase.PUSH, 0, one) for one in range(servers))
        return Schedule(tuple(pushes), ())
    mirrors = [trainers + (own + 1 + one) % servers for one in range(len(held) - 1)]
    arrivals = [
        Arrival(
            trainer,
            Phase.PUSH,
            0,
            own,
            adds=trainer > 0,
            onward=tuple(Transfer(one, Phase.SUMMED, 0, own) for one in mirrors)
            if trainer == trainers - 1
            else (),
            after=trainer - 1 if trainer else None,
        )
        for trainer in range(trainers)
    ]
    arrivals += [Arrival(trainers + one, Phase.SUMMED, 0, one) for one in held[1:]]
    return Schedule((), tuple(arrivals))


def goes_by_star(shape: BucketShape) -> bool:
    """Whether a bucket uses the star of a generation that has servers; all others use the ring."""
    return shape.operation.is_half and not shape.bounds and shape.hops is None


class RingSchedules:
    """The schedules of one rank of a ring, for buckets of any shape.

    Attributes:
        tree: the way of small gathers and of buckets that travel whole.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        chunk_bytes: int,
        whole_bytes: int,
        strides: Sequence[int] = (),
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.tree = Tree(rank, world_size, strides)
        self._chunk_bytes = chunk_bytes
        self._whole_bytes = whole_bytes
        self._made: dict[range | None, Schedule] = {}

    def whole(self, shapes: Sequence[BucketShape]) -> frozenset[int]:
        """Indices of those that travel whole, of buckets that are declared together."""
        for shape in shapes:
            if shape.bounds:  # a wrong one is the caller's fault, not that of the chunk that asks
                self._cut(shape)
        return exchanged(
            shapes,
            world_size=self.world_size,
            chunk_bytes=self._chunk_bytes,
            whole_bytes=self._whole_bytes,
        )

    def of(self, shape: BucketShape, *, whole: bool) -> tuple[Schedule, Segments]:
        """A bucket's schedule, and the segments that it speaks of."""
        window = None if whole else shape.window(self.world_size)
        schedule = self._made.get(window)
        if schedule is None:
            schedule = self._made[window] = (
                in_whole(self.tree)
                if window is None
                else ring_in_segments(self.rank, self.world_size, window)
            )
        if not whole:
            return schedule, self._cut(shape)
        contributions = shape.elements * self.world_size
        return schedule, Segments(contributions, self.world_size, max(1, shape.elements))

    def _cut(self, shape: BucketShape) -> Segments:
        return cut(shape, world_size=self.world_size, chunk_bytes=self._chunk_bytes)


class StarSchedules:
    """The schedules of one rank of a star, for halves that use it."""

    def __init__(self, rank: int, world_size: int, *, servers: int, chunk_bytes: int) -> None:
        if not 0 < servers < world_size:
            raise LocalProtocolError(f"a star of {world_size} ranks has {servers} servers")
        self.rank = rank
        self.world_size = world_size
        self.tree = Tree(rank, world_size)
        self.servers = servers
        self._chunk_bytes = chunk_bytes
        self._made: dict[tuple[Operation, int], Schedule] = {}

    def whole(self, shapes: Sequence[BucketShape]) -> frozenset[int]:
        """No bucket travels whole."""
        if not all(map(goes_by_star, shapes)):
            raise LocalProtocolError("a bucket in the star needs the ring")
        return frozenset()

    def of(self, shape: BucketShape, *, whole: bool) -> tuple[Schedule, Segments]:
        """A bucket's schedule, and the segments that it speaks of."""
        del whole
        key = shape.operation, shape.copies
        if key not in self._made:
            self._made[key] = star(self.rank, self.world_size, self.servers, shape)
        chunk_elements = max(1, self._chunk_bytes // shape.item_bytes)
        return self._made[key], Segments(shape.elements, self.servers, chunk_elements)
