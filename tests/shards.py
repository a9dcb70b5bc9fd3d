"""A rank's holdings of a state that all ranks own: a short way to write expectations."""

from __future__ import annotations

from dtd.engine.shards import Division, ShardSet


def held_segments(rank: int, world_size: int, mirrors: int) -> list[int]:
    """The segments that a rank holds if all ranks own."""
    return Division(world_size=world_size, mirrors=mirrors).held(rank)


def held_shards(rank: int, world_size: int, mirrors: int) -> ShardSet:
    """The same as a set of shards."""
    return Division(world_size=world_size, mirrors=mirrors).shards(rank)
