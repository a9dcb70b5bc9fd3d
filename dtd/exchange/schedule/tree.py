"""The tree by which small things of every rank reach all others, in few hops.

A rank has links to those that are a *stride* after it on the ring: with all powers of two, of 64
ranks to those at 1, 2, 4, 8, 16 and 32.  What begins at a rank arrives at distance d from there
over the longest stride that is at most d, and goes on at once over all strides from which another
rank expects it in the same way.  With the powers of two that is a binomial tree: every distance is
reached in as many hops as it has bits set, so in at most ceil(log2 N).  With the stride 1 alone it
is the way around the ring.  All ranks begin at the same time, each the root of its own tree, and
each sends N - 1 times in all; nobody waits for rounds.

Pure arithmetic; protocol.md, "Tree".
"""

from __future__ import annotations

from collections.abc import Sequence

from dtd.errors import LocalProtocolError


def powers_of_two(world_size: int) -> tuple[int, ...]:
    """All powers of two below the number of ranks: the strides with the fewest hops."""
    return tuple(1 << bit for bit in range((world_size - 1).bit_length()))


def most_hops(world_size: int) -> int:
    """Hops to the furthest of the ranks, over all powers of two: most bits set in a distance."""
    return world_size.bit_length() - 1


def strides_in(total: int) -> tuple[int, ...]:
    """The powers of two whose sum this is, as ASSIGN has them."""
    return tuple(1 << bit for bit in range(total.bit_length()) if total >> bit & 1)


class Tree:
    """One rank's place in the trees of all ranks.

    Args:
        rank: this rank.
        world_size: number of ranks, N.
        strides: ascending, from 1, below N; none: all powers of two.

    Attributes:
        hops: to the furthest of the ranks.
    """

    def __init__(self, rank: int, world_size: int, strides: Sequence[int] = ()) -> None:
        self.rank = rank
        self.world_size = world_size
        self.strides = tuple(strides) or powers_of_two(world_size)
        if self.strides[:1] != (1,)[: world_size - 1] or self.strides != tuple(
            stride for stride in sorted(set(self.strides)) if stride < world_size
        ):
            raise LocalProtocolError(f"a ring of {world_size} ranks has strides {self.strides}")
        self._last = [0] * world_size
        self._onward: list[list[int]] = [[] for _ in range(world_size)]
        hops = [0] * world_size
        for distance in range(1, world_size):
            stride = max(stride for stride in self.strides if stride <= distance)
            self._last[distance] = stride
            self._onward[distance - stride].append(distance)
            hops[distance] = hops[distance - stride] + 1
        self.hops = max(hops)

    def distance(self, origin: int) -> int:
        """How far this rank is after `origin` on the ring."""
        return (self.rank - origin) % self.world_size

    def source(self, origin: int) -> int:
        """The rank from which this one receives what begins at another one."""
        return (self.rank - self._last[self.distance(origin)]) % self.world_size

    def onward(self, origin: int) -> list[tuple[int, int]]:
        """(rank, its distance from the origin) of those to which this rank sends it on."""
        return [
            ((origin + distance) % self.world_size, distance)
            for distance in self._onward[self.distance(origin)]
        ]
