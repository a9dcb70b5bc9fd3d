"""The members, the order and the starting state of the next generation.

Pure functions of the workers' reports; each docstring gives the reason for its rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dtd.cluster.generation.states import Key, covers, has, held_key, in_memory, needed
from dtd.cluster.records import Job, Worker
from dtd.cluster.workers.links import Pair, pair_of
from dtd.exchange.schedule import crossover
from dtd.exchange.schedule.tree import Tree, strides_in
from dtd.text.names import natural_key
from dtd.wire import messages as m

MAX_TRIES: Final = 10_000
"""Limit of the search for a ring; with few bad links the first attempt succeeds."""


def start_key(job: Job, available: Iterable[Worker]) -> Key:
    """The starting state of the next generation, chosen so that no committed step is lost.

    A step that every reachable member has prepared may have been committed by an unreachable one,
    so it is committed (ADR 0006).  A reachable member that has not prepared the step has not voted
    for it, so no member has committed it.  One that reports no state has no say: all that others
    have prepared, it had computed with them.  A decision to commit a step is permanent.  A state of
    which the workers lack a shard cannot be continued.
    """
    workers = list(available)
    return max((key for key in _keys(job, workers) if covers(workers, key)), default=(0, 0))


def newest_key(job: Job, available: Iterable[Worker]) -> Key:
    """The key that would be the start if the workers had all shards of it."""
    return max(_keys(job, list(available)), default=(0, 0))


def _keys(job: Job, workers: Sequence[Worker]) -> set[Key]:
    keys = {held_key(worker) for worker in workers}
    keys |= {(one.generation, one.step) for worker in workers for one in worker.holdings.saved}
    left = [w for w in workers if w.holdings.frozen_in == job.generation > 0 and in_memory(w)]
    ended = {w.holdings.prepared for w in left}
    if len(ended) == 1:
        keys |= {key for key in ended if key[0] == job.generation}
    if job.step > job.start_step:  # a member has told so
        keys |= ended & {(job.generation, job.step)}
    decided = (job.start_generation, job.start_step)
    return keys | {w.holdings.prepared for w in workers if w.holdings.prepared == decided}


def holders(members: Sequence[Worker], start: Key) -> list[bool]:
    """For each rank, whether it holds the state; if none does, rank 0 provides a fresh one.

    Fresh states are equal only on equal machines, so a worker with a state in memory takes
    precedence.
    """
    held = [has(worker, start) for worker in members]
    return held if any(held) else [rank == 0 for rank in range(len(members))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Members of a roster in rank order, and workers excluded for lack of a working link."""

    members: list[Worker]
    barred: list[Worker]


def choose(
    workers: Iterable[Worker],
    *,
    start: Key,
    max_workers: int,
    bad_links: Collection[Pair],
) -> Choice:
    """The members of the next roster.

    If there are more than `max_workers` candidates, holders of the state take precedence, and among
    those the ones that together have all shards of it.  Workers that leave once they have passed
    on their state do not count towards the limit, nor do parameter servers.  Ranks follow
    the order of names, so that they are deterministic, unless a bad link would join two neighbours;
    servers are last.  If no order avoids all bad links, a worker with a bad link is excluded:
    preferably one whose state or shards others have, then one without the state, then the one
    with the most bad links, then the last by name.
    """
    by_name = sorted(workers, key=lambda w: natural_key(w.name))
    few = {worker.name for worker in needed(by_name, start)}
    candidates = sorted(by_name, key=lambda w: (w.name not in few, not has(w, start)))
    barred: list[Worker] = []
    while True:
        leaving = [worker for worker in candidates if worker.leaving]
        staying = [worker for worker in candidates if not worker.leaving]
        servers = [worker for worker in staying if worker.serves]
        staying = [worker for worker in staying if not worker.serves]
        most = max(max_workers, sum(worker.name in few for worker in staying))
        chosen = leaving + servers + staying[:most]
        chosen = sorted(chosen[: m.MAX_WORLD], key=lambda w: (w.serves, natural_key(w.name)))
        last = {worker.name for worker in chosen if worker.serves}
        order = ring_order([worker.name for worker in chosen], bad_links, last)
        if order is not None:
            named = {worker.name: worker for worker in chosen}
            return Choice(members=[named[name] for name in order], barred=barred)
        worst = max(chosen, key=lambda w: _blame(w, chosen, start, bad_links))
        candidates.remove(worst)
        barred.append(worst)


def _blame(
    worker: Worker,
    chosen: Sequence[Worker],
    start: Key,
    bad_links: Collection[Pair],
) -> tuple[bool, bool, int, tuple[tuple[int, int, str], ...]]:
    pairs = [pair_of(worker.name, other.name) for other in chosen]
    broken = [pair for pair in pairs if pair in bad_links]
    lacks = bool(broken) and not has(worker, start)
    spare = bool(broken) and covers([one for one in chosen if one is not worker], start)
    return spare, lacks, len(broken), natural_key(worker.name)


def ring_order(
    names: Sequence[str], bad_links: Collection[Pair], servers: Collection[str] = ()
) -> list[str] | None:
    """The first order of `names` in which no bad link joins neighbours; None if there is none.

    Args:
        names: in the preferred order, the servers last.
        bad_links: pairs that cannot be neighbours.
        servers: remain last, and need a link to every other member.
    """
    if not names:
        return []
    if any(pair_of(one, other) in bad_links for one in servers for other in names if one != other):
        return None
    order, tries = [names[0]], 0
    untried: list[list[str]] = [list(names[1:])]
    while True:
        tries += 1
        closed = len(names) == 1 or pair_of(order[-1], order[0]) not in bad_links
        if len(order) == len(names) and closed:
            return order
        while untried and not untried[-1]:
            untried.pop()
            order.pop()
        if not untried or tries > MAX_TRIES:
            return None
        candidate = untried[-1].pop(0)
        order = order[: len(untried)]
        too_early = candidate in servers and any(
            name not in servers and name not in order for name in names
        )
        if pair_of(order[-1], candidate) not in bad_links and not too_early:
            order.append(candidate)
            placed = {*order}
            untried.append([name for name in names if name not in placed])


def strides(order: Sequence[str], bad_links: Collection[Pair]) -> int:
    """The sum of the strides of a roster's trees (`exchange.schedule.tree`), for ASSIGN.

    A stride is left out, which costs hops, if it would need a bad link; 0: none is left out.
    """
    size = len(order)
    every = [1 << bit for bit in range((size - 1).bit_length())]
    good = [
        stride
        for stride in every
        if not any(
            pair_of(name, order[(rank + stride) % size]) in bad_links
            for rank, name in enumerate(order)
        )
    ]
    return 0 if good == every else sum(good)


def hop_bytes(members: Iterable[Worker], before: int) -> int:
    """Bytes that a link carries in the time of a hop: the median of the next members.

    Args:
        members: those of the next generation.
        before: the same for the last one, which is kept unless links have clearly shown another.
    """
    beats = (member.liveness.heartbeat for member in members)
    shown = sorted(beat.hop_bytes for beat in beats if beat is not None and beat.hop_bytes)
    return crossover.settled(before, shown[(len(shown) - 1) // 2] if shown else 0)


def whole_bytes(members: Sequence[Worker], strides: int, hop_bytes: int) -> int:
    """Most bytes of a bucket that travels whole in a generation, for ASSIGN."""
    tree = Tree(0, len(members), strides_in(strides))
    places = {(one.registration.data_host, one.registration.others) for one in members}
    one_host = len(places) == 1
    return crossover.whole_bytes(len(members), tree.hops, hop_bytes=hop_bytes, one_host=one_host)


def roster_id(
    job: str, generation: int, roster: Sequence[Worker] | Sequence[m.Member], *, start: Key
) -> int:
    """A unique id of the roster: it includes incarnations, which workers draw at random."""
    text = f"{job}\0{generation}\0{start[0]}\0{start[1]}\0"
    text += "\0".join(f"{w.name}={w.incarnation}" for w in roster)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
