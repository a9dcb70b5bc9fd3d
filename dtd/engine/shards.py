"""Parts of a sharded state that a process holds, as shares of [0, 1).

A strategy that shards the state cuts each of its flat buckets into one segment for each rank, as
the ring does (`dtd.exchange.schedule.chunks.Segments`): segment i of N has the elements from
floor(E i / N) up to floor(E (i + 1) / N).  A rank *owns* one segment and holds *mirrors* of those
before it (`Division`).  Where a segment begins depends on the number of ranks, which changes from
generation to generation.  So a process names what it holds by intervals of [0, 1): those of
different generations can be united and compared without knowledge of a model, and floor(E x) maps
them to elements of any bucket.  As floor is monotone, sets that cover [0, 1) cover every element of
every bucket.

Pure.  On the wire a set is a flat list of integers (protocol.md, "Shards").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dtd.errors import ErrorCode, ProtocolError

MAX_INTERVALS: Final = 64
"""Most intervals in one set on the wire."""

MAX_DENOMINATOR: Final = 1 << 16

_INTEGERS_PER_INTERVAL: Final = 4

Interval = tuple[Fraction, Fraction]

_EMPTY: Final[tuple[Interval, ...]] = ((Fraction(0), Fraction(0)),)


@dataclass(frozen=True, slots=True)
class ShardSet:
    """A part of a state: a union of half-open intervals of [0, 1).

    Attributes:
        intervals: disjoint, not adjacent, in ascending order; equal sets have equal intervals.
    """

    intervals: tuple[Interval, ...] = ()

    @classmethod
    def of(cls, intervals: Iterable[Interval]) -> ShardSet:
        """Return the union of any intervals; those without elements are left out."""
        merged: list[Interval] = []
        for start, stop in sorted(one for one in intervals if one[0] < one[1]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        return cls(tuple(merged))

    @classmethod
    def segments(cls, indices: Iterable[int], world_size: int) -> ShardSet:
        """Return the union of these segments of `world_size`."""
        return cls.of(
            (Fraction(index, world_size), Fraction(index + 1, world_size)) for index in indices
        )

    @property
    def is_whole(self) -> bool:
        return self == WHOLE

    def __bool__(self) -> bool:
        return bool(self.intervals)

    def __or__(self, other: ShardSet) -> ShardSet:
        return ShardSet.of((*self.intervals, *other.intervals))

    def __sub__(self, other: ShardSet) -> ShardSet:
        left = list(self.intervals)
        for start, stop in other.intervals:
            left = [
                piece
                for begin, end in left
                for piece in ((begin, min(end, start)), (max(begin, stop), end))
                if piece[0] < piece[1]
            ]
        return ShardSet.of(left)

    def __and__(self, other: ShardSet) -> ShardSet:
        return self - (self - other)

    def covers(self, other: ShardSet) -> bool:
        return not other - self

    def ranges(self, elements: int) -> list[tuple[int, int]]:
        """Return the element ranges [start, stop) of a flat bucket that it stands for."""
        bounds = ((int(elements * start), int(elements * stop)) for start, stop in self.intervals)
        return [(start, stop) for start, stop in bounds if start < stop]

    def to_wire(self) -> list[int]:
        """Return it as integers: for each interval its start and its stop as two integers each.

        The empty set is described by an empty interval, since no integers at all stand for all of
        a state wherever a message or a record names a part of one.
        """
        return [
            number
            for interval in self.intervals or _EMPTY
            for bound in interval
            for number in (bound.numerator, bound.denominator)
        ]

    @classmethod
    def from_wire(cls, numbers: Sequence[int]) -> ShardSet:
        """Return the set that another process described.

        Raises:
            ProtocolError: it is no set of intervals of [0, 1), or has too many.
        """
        if len(numbers) % _INTEGERS_PER_INTERVAL or (
            len(numbers) > MAX_INTERVALS * _INTEGERS_PER_INTERVAL
        ):
            raise _refused(f"{len(numbers)} integers")
        bounds = []
        for numerator, denominator in zip(numbers[::2], numbers[1::2], strict=True):
            if not 0 <= numerator <= denominator or not 0 < denominator <= MAX_DENOMINATOR:
                raise _refused(f"{numerator}/{denominator}")
            bounds.append(Fraction(numerator, denominator))
        intervals = tuple(zip(bounds[::2], bounds[1::2], strict=True))
        if intervals == _EMPTY:
            return NOTHING
        known = cls.of(intervals)
        if known.intervals != intervals:
            raise _refused("intervals that are empty, adjacent or not in order")
        return known

    def __str__(self) -> str:
        if not self:
            return "nothing"
        return "all" if self.is_whole else ", ".join(f"{a} to {b}" for a, b in self.intervals)


WHOLE: Final = ShardSet(((Fraction(0), Fraction(1)),))
NOTHING: Final = ShardSet()


def united(sets: Iterable[ShardSet]) -> ShardSet:
    """Return the union of any number of sets."""
    return ShardSet.of(interval for one in sets for interval in one.intervals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The division of a state's segments among the ranks of a generation.

    If all ranks own, rank r owns segment r + 1, whose sum the ring completes there, and mirrors
    those of the ranks before it, which it receives in the next hops.  Servers, if there are any,
    are the last ranks of the roster; server i owns segment i, and the other ranks hold nothing.

    Attributes:
        world_size: number of ranks.
        mirrors: further holders of each segment; limited by the number of other owners.
        servers: how many ranks are servers; 0: all ranks own.
    """

    world_size: int
    mirrors: int
    servers: int = 0

    @property
    def segments(self) -> int:
        """Number of segments, which is that of the owners."""
        return self.servers or self.world_size

    def held(self, rank: int) -> list[int]:
        """Return the segments that a rank holds: its own one first, then those it mirrors."""
        count = self.segments
        own = rank - (self.world_size - count) if self.servers else rank + 1
        if own < 0:
            return []
        return [(own - back) % count for back in range(min(self.mirrors + 1, count))]

    def shards(self, rank: int) -> ShardSet:
        """Return the part that a rank holds."""
        return ShardSet.segments(self.held(rank), self.segments)

    def own(self, rank: int) -> ShardSet:
        return ShardSet.segments(self.held(rank)[:1], self.segments)

    def owner(self, segment: int) -> int:
        if self.servers:
            return self.world_size - self.servers + segment
        return (segment - 1) % self.world_size


def _refused(what: str) -> ProtocolError:
    return ProtocolError(ErrorCode.BAD_PAYLOAD, f"a set of shards is described by {what}")
