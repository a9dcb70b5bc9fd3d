"""Transfers between ranks of a new generation, so that each has its part of a sharded state.

After a change of membership the ranks hold the parts of an earlier division, and a joiner holds
nothing.  From what all hold and want, every rank computes the same plan.  What a rank lacks comes
from the nearest rank before it on the ring that holds it, and passes through all ranks between.  So
each link carries exactly those parts that are wanted and not held on its far side, or beyond it
before the next holder: no plan for a ring in one direction sends less.

The parts travel in all-gathers that stop early (`hops` of `BucketShape`,
`dtd.exchange.schedule.chunks`), one for each distance: every part is sent once, to the furthest
rank that takes it, and nearer ones take it as it passes by.  There are at most N - 1 of these
windows, and none if everybody has everything.

What travels comes from one holder of perhaps several, so these first compare it
(`dtd.engine.digests`).

Pure.  A plan is about shares of [0, 1), as `ShardSet`s; a window maps it to the elements of any
flat bucket.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Final

from dtd.engine.digests import Shared
from dtd.engine.shards import Interval, ShardSet, united
from dtd.errors import ShardsMissing

MOST_COMPARED: Final = 1024
"""Most parts that are compared: their hashes have to fit in one small gather."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [start, stop) of a flat bucket, the first of them at `at` in a window's buffer."""

    at: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupWindow:
    """One all-gather, in which each rank contributes parts of its own size.

    Attributes:
        hops: how many ranks after its own each part reaches.
        given: the part that each rank contributes.
        taken: for each rank, from which ranks it takes which parts of what they contribute.
    """

    hops: int
    given: tuple[ShardSet, ...]
    taken: tuple[tuple[tuple[int, ShardSet], ...], ...]

    def bounds(self, elements: int) -> tuple[int, ...]:
        """Return the bounds of the segments of the buffer for a bucket of so many elements.

        The last one is the size of the buffer.  Rank r contributes segment (r + 1) mod N.
        """
        ranks = len(self.given)
        sizes = (
            sum(stop - start for start, stop in self.given[(index - 1) % ranks].ranges(elements))
            for index in range(ranks)
        )
        return tuple(accumulate(sizes, initial=0))

    def gives(self, rank: int, elements: int) -> list[Piece]:
        """Return the pieces that a rank writes to the buffer before the all-gather."""
        at = self.bounds(elements)[(rank + 1) % len(self.given)]
        pieces = []
        for start, stop in self.given[rank].ranges(elements):
            pieces.append(Piece(at, start, stop))
            at += stop - start
        return pieces

    def takes(self, rank: int, elements: int) -> list[Piece]:
        """Return the pieces that a rank reads from the buffer after the all-gather."""
        return [
            Piece(given.at + start - given.start, start, stop)
            for origin, part in self.taken[rank]
            for given in self.gives(origin, elements)
            for start, stop in part.ranges(elements)
            if given.start <= start < given.stop
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupPlan:
    """All transfers of a regrouping.

    Attributes:
        windows: in ascending order of their hops.
        shared: moving parts that several ranks hold, one part for each group of holders.
    """

    windows: tuple[RegroupWindow, ...]
    shared: tuple[Shared, ...]

    def taken(self, rank: int) -> ShardSet:
        return united(part for window in self.windows for _, part in window.taken[rank])


def plan_regroup(held: Sequence[ShardSet], wanted: Sequence[ShardSet]) -> RegroupPlan:
    """Plan the transfers of a state's parts between ranks.

    Args:
        held: the part that each rank of the new ring holds.
        wanted: the part that each of them is to hold; only its missing part is sent.

    Raises:
        ShardsMissing: no rank holds a part that another one lacks.
    """
    missing = united(wanted) - united(held)
    if missing:
        raise ShardsMissing(
            f"of the sharded state, {missing} of 0 to 1 is held by no member",
            remedy="start workers that hold it, or let the job start from a checkpoint",
        )
    ranks = len(held)
    given: dict[int, list[list[Interval]]] = {}
    taken: dict[int, dict[tuple[int, int], list[Interval]]] = defaultdict(lambda: defaultdict(list))
    by_holders: dict[tuple[int, ...], list[Interval]] = defaultdict(list)
    for interval, holders, takers in _elementary(held, wanted):
        by_holders[tuple(holders)].append(interval)
        for origin, nearer in _nearest(holders, takers, ranks).items():
            hops = max(nearer)
            given.setdefault(hops, [[] for _ in held])[origin].append(interval)
            for distance in nearer:
                taken[hops][(origin + distance) % ranks, origin].append(interval)
    windows = (
        RegroupWindow(
            hops=hops,
            given=tuple(map(ShardSet.of, given[hops])),
            taken=tuple(_parts_of(rank, taken[hops]) for rank in range(ranks)),
        )
        for hops in sorted(given)
    )
    return RegroupPlan(windows=tuple(windows), shared=_shared(by_holders))


def _shared(by_holders: dict[tuple[int, ...], list[Interval]]) -> tuple[Shared, ...]:
    """Return the parts that more than one rank holds, of intervals by holders."""
    several = (one for one in by_holders.items() if len(one[0]) > 1)
    return tuple(
        Shared(part=ShardSet.of(intervals), holders=holders)
        for holders, intervals in islice(several, MOST_COMPARED)
    )


def _parts_of(
    rank: int, taken: dict[tuple[int, int], list[Interval]]
) -> tuple[tuple[int, ShardSet], ...]:
    """Return the (origin, part) pairs that a rank takes, of intervals by taker and origin."""
    mine = sorted(origin for taker, origin in taken if taker == rank)
    return tuple((origin, ShardSet.of(taken[rank, origin])) for origin in mine)


def _elementary(
    held: Sequence[ShardSet], wanted: Sequence[ShardSet]
) -> Iterator[tuple[Interval, list[int], list[int]]]:
    """Yield the intervals that no set divides, with the ranks that hold and those that lack them.

    Those that no rank lacks are left out.
    """
    every = (*held, *wanted)
    points = sorted({point for one in every for interval in one.intervals for point in interval})
    index = {point: position for position, point in enumerate(points)}
    holders: list[list[int]] = [[] for _ in points]
    takers: list[list[int]] = [[] for _ in points]
    for sets, ranks in ((held, holders), (map(ShardSet.__sub__, wanted, held), takers)):
        for rank, one in enumerate(sets):
            for start, stop in one.intervals:
                for position in range(index[start], index[stop]):
                    ranks[position].append(rank)
    for position, interval in enumerate(pairwise(points)):
        if takers[position]:
            yield interval, holders[position], takers[position]


def _nearest(holders: Sequence[int], takers: Sequence[int], ranks: int) -> dict[int, list[int]]:
    """Return for each holder that gives an interval the distances of the ranks that take it."""
    nearest: dict[int, list[int]] = {}
    for taker in takers:
        distance = min((taker - holder) % ranks for holder in holders)
        nearest.setdefault((taker - distance) % ranks, []).append(distance)
    return nearest
