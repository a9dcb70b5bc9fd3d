"""The states that workers hold, and the members, order and starting state of the next generation.

A worker holds all of a state, or, if the job's strategy shards it, a part (`engine.shards`).  A
state can be continued from workers whose parts cover [0, 1): where it is not sharded, each part is
all of it, and one holder is enough.

Pure functions of the workers' reports; each docstring gives the reason for its rule.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Final

from dtd.cluster import figures
from dtd.cluster.records import Job, Worker
from dtd.cluster.workers.links import Pair, pair_of
from dtd.engine.shards import NOTHING, WHOLE, Division, ShardSet, united
from dtd.exchange.schedule import crossover
from dtd.exchange.schedule.tree import Tree, strides_in
from dtd.wire import messages as m

MAX_TRIES: Final = 10_000
"""Limit of the search for a ring; with few bad links the first attempt succeeds."""


@lru_cache(maxsize=1024)
def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts worker-10 after worker-9."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    )


NOTHING_HELD = m.Held(job="", generation=0, step=0, digest="", where="none")

Key = tuple[int, int]
"""Identifies a state: the generation that committed its last step, and its number of steps."""


# --- the state, or shards, of one worker ---------------------------------------------------------


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


# --- the shards of several workers ---------------------------------------------------------------


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


# --- the starting state ------------------------------------------------------------------------


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


# --- the members -------------------------------------------------------------------------------


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


# --- compatible workers ------------------------------------------------------------------------


def reference(reports: Sequence[m.Warmed], *, steps_total: int = 0) -> m.Warmed:
    """The report with which most workers agree.

    Among equally common reports, the first whose number of steps equals the job's known number
    (`steps_total`) takes precedence.  A single worker that later reports another number therefore
    does not change the length of the job.
    """
    alike = Counter(map(_compared, reports))
    first: dict[tuple[object, ...], m.Warmed] = {}
    for one in reports:
        first.setdefault(_compared(one), one)

    def agreement(one: m.Warmed) -> tuple[int, bool]:
        agree = sum(alike[kind] for kind, other in first.items() if not disagreement(one, other))
        return agree, one.steps_total == steps_total

    return max(first.values(), key=agreement)


_FIELDS: Final = attrgetter(
    *("task_digest", "dataset_rows", "dataset_fingerprint", "numerics_fingerprint"),
    *("steps_total", "batches", "plan_digest"),
)


def _compared(report: m.Warmed) -> tuple[object, ...]:
    """What `disagreement` compares."""
    return *_FIELDS(report), _required(report)


def _required(report: m.Warmed) -> str:
    return figures.heard(report.environment).get(figures.REQUIRED, "")


def disagreement(
    reference: m.Warmed, other: m.Warmed, *, by: tuple[str, str] = ("others", "it")
) -> str:
    """Why two workers must not train together; empty if they may.  `by`: their names.

    The code of the task is compared first, since it may be the reason for the other differences.
    """
    code, known = other.task_digest, reference.task_digest
    if code and known and code != known:
        return (
            f"{by[1]} has other code of the task ({code[:12]}) than {by[0]} ({known[:12]}):"
            " have `dtdctl submit` ship it, or install the same version on both"
        )
    known, found = _required(reference), _required(other)
    if known != found:
        return (
            f"it has {found or 'no packages'} for the job, and {by[0]} {known or 'no packages'}:"
            " name versions in the job's requirements"
        )
    if reference.dataset_rows != other.dataset_rows:
        return f"its dataset has {other.dataset_rows} rows, not {reference.dataset_rows}"
    if reference.dataset_fingerprint != other.dataset_fingerprint:
        return "sampled rows of its dataset, or their order, differ from the other workers'"
    known, numerics = reference.numerics_fingerprint, other.numerics_fingerprint
    if known and numerics and known != numerics:
        return (
            "its numerics differ (another torch version, device type or processor):"
            f' {numerics}, not {known}: have the same torch on both, or [strategy] update = "owner"'
        )
    if reference.steps_total != other.steps_total:
        return f"it would train {other.steps_total} steps, not {reference.steps_total}"
    if reference.batches != other.batches:
        return f"it trains with {other.batches}, not {reference.batches}"
    if reference.plan_digest != other.plan_digest:
        return (
            "its model has other parameters than the other workers', or its optimizer has them in"
            " another order or in other groups"
        )
    return ""
