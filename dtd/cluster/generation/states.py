"""The states that workers hold, whole or in parts, and whether several together have all of one.

A worker holds all of a state, or, if the job's strategy shards it, a part (`engine.shards`).  A
state can be continued from workers whose parts cover [0, 1): where it is not sharded, each part is
all of it, and one holder is enough.  Pure functions of the workers' reports.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from dtd.cluster.records import Job, Worker
from dtd.engine.shards import NOTHING, WHOLE, Division, ShardSet, united
from dtd.wire import messages as m

NOTHING_HELD = m.Held(job="", generation=0, step=0, digest="", where="none")

Key = tuple[int, int]
"""Identifies a state: the generation that committed its last step, and its number of steps."""


def held_key(worker: Worker) -> Key:
    """Key of the newest state that a worker holds."""
    held = worker.holdings.held or NOTHING_HELD
    return held.generation, held.step


def in_memory(worker: Worker) -> bool:
    """Whether a worker holds its state in memory, rather than on disk or not at all."""
    return worker.holdings.held is not None and worker.holdings.held.where == "memory"


def part_of(held: m.Held | None) -> ShardSet:
    """The shards that a worker reports to hold of a state."""
    return NOTHING if held is None or held.where == "none" else part_from(held.part)


@lru_cache(maxsize=1024)
def part_from(numbers: Sequence[int]) -> ShardSet:
    """The set that a message or a record describes; an empty description stands for all shards.

    Raises:
        ProtocolError: it describes no set.
    """
    return ShardSet.from_wire(numbers) if numbers else WHOLE


def has(worker: Worker, key: Key) -> bool:
    """Whether a worker has the state with this key, or a part of it.

    A worker beside parameter servers has none of the shards, but all that the ranks have in common.
    """
    held, holdings = worker.holdings.held, worker.holdings
    if held is not None and held.where != "none" and held_key(worker) == key:
        return True
    if in_memory(worker) and holdings.prepared == key:
        return True
    return bool(part_at(worker, key))


def part_at(worker: Worker, key: Key) -> ShardSet:
    """Return a worker's part of the state with this key: in memory, prepared, or on its disk."""
    holdings = worker.holdings
    if held_key(worker) == key or (in_memory(worker) and holdings.prepared == key):
        return part_of(holdings.held)
    return united(part_of(one) for one in holdings.saved if (one.generation, one.step) == key)


def assigned_part(job: Job, name: str) -> ShardSet:
    """Return a member's part in the job's newest generation once that runs; nothing for others."""
    if name not in job.roster:
        return NOTHING
    if not job.terms.sharded:
        return WHOLE
    return division(job).shards(job.roster.index(name))


def division(job: Job) -> Division:
    """Return the division of a sharded state among the job's newest generation."""
    mirrors = job.terms.mirrors
    return Division(world_size=len(job.roster), mirrors=mirrors, servers=job.servers)


def start_held(job: Job, name: str) -> m.Held:
    """The state, or its part, that a member holds once it runs in the job's newest generation."""
    return m.Held(
        job=job.id,
        generation=job.start_generation,
        step=job.start_step,
        digest="",
        where="memory",
        part=() if not job.terms.sharded else tuple(assigned_part(job, name).to_wire()),
    )


def held_by(message: m.Frozen | m.Finished) -> m.Held:
    """The state of a worker that has left its generation."""
    if isinstance(message, m.Frozen):
        return message.held[0] if message.held else NOTHING_HELD
    return m.Held(
        job=message.job,
        generation=message.held_generation,
        step=message.step,
        digest=message.digest,
        where="memory",
        part=message.part,
    )


def uncovered(workers: Iterable[Worker], key: Key) -> ShardSet:
    """The shards of the state with this key that none of the workers has."""
    left = WHOLE
    for worker in workers:
        left = left - part_at(worker, key)
        if not left:
            break
    return left


def covers(workers: Iterable[Worker], key: Key) -> bool:
    """Whether the workers together have all of the state with this key."""
    return not uncovered(workers, key)


def needed(workers: Sequence[Worker], key: Key) -> list[Worker]:
    """A few of the workers that together have as much of the state as all: the largest parts first.

    Of parts of one size, the first in the given order counts.
    """
    left = WHOLE
    few: list[Worker] = []
    # What a part adds only shrinks, so a figure that is out of date still bounds it from above.
    most = [(-size(part_at(worker, key)), index) for index, worker in enumerate(workers)]
    heapq.heapify(most)
    while most and left:
        _, index = heapq.heappop(most)
        part = part_at(workers[index], key) & left
        added = (-size(part), index)
        if most and added > most[0]:
            heapq.heappush(most, added)
        elif part:
            few.append(workers[index])
            left = left - part
    return few


def size(part: ShardSet) -> float:
    """The share of a state that a set of shards is."""
    return float(sum(stop - start for start, stop in part.intervals))


def copies(parts: Iterable[ShardSet]) -> int:
    """Return how many times the parts cover [0, 1): each shard has at least so many copies."""
    given = list(parts)
    edges = {bound for part in given for interval in part.intervals for bound in interval}
    starts = sorted({WHOLE.intervals[0][0], *edges} - {WHOLE.intervals[0][1]})
    return min(
        sum(any(a <= start < b for a, b in part.intervals) for part in given) for start in starts
    )


def scarce(parts: Mapping[str, ShardSet], wanted: int) -> ShardSet:
    """The shards of which there are fewer than `wanted` copies."""
    layers = [NOTHING] * max(1, wanted)  # layer i: the shards with more than i copies
    for part in parts.values():
        rest = part
        for index, layer in enumerate(layers):
            layers[index], rest = layer | rest, layer & rest
    return WHOLE - layers[-1]


def can_spare(job: Job, *names: str) -> bool:
    """Whether the other members of the newest generation have all shards without these.

    A generation of one hands its state on, like those of jobs whose state is not sharded.
    """
    others = [one for one in job.roster if one not in names]
    if not job.terms.sharded or len(others) == len(job.roster) or not others:
        return True
    return united(assigned_part(job, one) for one in others).is_whole


def redundancy(job: Job, names: Iterable[str]) -> int | None:
    """Return how many members may be lost, whichever, without losing a step; None if unknown.

    Args:
        job: the active one, with its newest generation.
        names: members of that generation that still hold their parts.
    """
    parts = [assigned_part(job, name) for name in names]
    return copies(parts) - 1 if parts else None
