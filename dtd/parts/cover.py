"""The choice of parts that make a whole checkpoint.  Pure.

The coordinator lists an entry for each worker that has a checkpoint, or a part of it.  Entries with
the same generation, step and digest are of one checkpoint.  A part that was saved when no ring was
left to compare it has no digest; it belongs to the one checkpoint of its generation and step, and
is compared with the other parts where they overlap, when they are merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dtd.engine.shards import NOTHING, WHOLE, ShardSet, united

Entry = TypeVar("Entry", bound=Mapping[str, Any])


def fewest(parts: Sequence[ShardSet]) -> list[int]:
    """Indices of parts that hold together as much as all, in the order to take them.

    The part that adds most comes first, of equal ones the first.  With parts of a ring's ranks
    these are as few as can be, or one more.

    Args:
        parts: their shards.
    """
    chosen: list[int] = []
    covered, wanted = NOTHING, united(parts)
    while not covered.covers(wanted):
        best = max(range(len(parts)), key=lambda i: (_share(parts[i] - covered), -i))
        chosen.append(best)
        covered |= parts[best]
    return chosen


def missing(parts: Sequence[ShardSet]) -> ShardSet:
    """Return the shards that no part holds."""
    return WHOLE - united(parts)


def checkpoint_of(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """The checkpoint that an entry of the list is of."""
    return entry["job"], entry["generation"], entry["step"], entry["digest"]


def by_checkpoint(listed: Sequence[Entry]) -> list[list[Entry]]:
    """The entries of each checkpoint, those with a digest first.

    A part without a digest is on its own if parts of its generation and step have several.

    Args:
        listed: the coordinator's list; the checkpoints come in its order.
    """
    digests: dict[tuple[Any, ...], set[str]] = {}
    for one in listed:
        if one.get("part") and one["digest"]:
            digests.setdefault(checkpoint_of(one)[:-1], set()).add(one["digest"])
    grouped: dict[tuple[Any, ...], list[Entry]] = {}
    for one in listed:
        *key, digest = checkpoint_of(one)
        known = digests.get(tuple(key), set())
        if one.get("part") and not digest and len(known) == 1:
            (digest,) = known
        grouped.setdefault((*key, digest), []).append(one)
    return [sorted(group, key=lambda one: not one["digest"]) for group in grouped.values()]


def part_of(entry: Mapping[str, Any]) -> ShardSet:
    """Return the shards that the worker of an entry has.

    Raises:
        ProtocolError: the entry names no shards.
    """
    return ShardSet.from_wire(entry["part"]) if entry.get("part") else WHOLE


def complete(listed: Sequence[Entry]) -> list[list[Entry]]:
    """The entries of each checkpoint of which some worker has each part, in the list's order."""
    groups = by_checkpoint(listed)
    return [group for group in groups if not missing([part_of(one) for one in group])]


def _share(one: ShardSet) -> float:
    return float(sum(stop - start for start, stop in one.intervals))
