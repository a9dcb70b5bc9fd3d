"""Who is in the next generation, in which order, and which state it starts from.

Pure functions over what the workers have reported; each choice comes with its reason.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dtd.core.membership.records import Job, Worker
from dtd.core.observe.links import Pair, pair_of
from dtd.wire import messages as m

NOTHING_HELD = m.Held(job="", generation=0, step=0, digest="", where="none")
MAX_TRIES: Final = 10_000
"""Bound of the search for a ring; with few bad links the first try succeeds."""

Key = tuple[int, int]
"""Names a state: the generation that committed its last step, and the number of its steps."""


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts worker-10 after worker-9."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    )


# --- the state ---------------------------------------------------------------------------------


def held_key(worker: Worker) -> Key:
    """The newest state that a worker holds."""
    held = worker.holdings.held or NOTHING_HELD
    return held.generation, held.step


def in_memory(worker: Worker) -> bool:
    """It holds its state in memory rather than on a disk, or not at all."""
    return worker.holdings.held is not None and worker.holdings.held.where == "memory"


def start_key(job: Job, available: Iterable[Worker]) -> Key:
    """The state that the next generation starts from: no committed step may be lost.

    A step that every member we hear of holds prepared may have been committed by one that we do
    not hear of, so it is committed (ADR 0006).  If one of them does not hold it prepared it has not
    voted, so nobody has committed it.  What was once decided to be committed stays so.
    """
    workers = list(available)
    keys = [held_key(worker) for worker in workers]
    ended = {w.holdings.prepared for w in workers if w.holdings.frozen_in == job.generation > 0}
    if len(ended) == 1:
        keys += [key for key in ended if key[0] == job.generation]
    decided = (job.start_generation, job.start_step)
    keys += [worker.holdings.prepared for worker in workers if worker.holdings.prepared == decided]
    return max(keys, default=(0, 0))


def holds(worker: Worker, start: Key) -> bool:
    """It has this state, or can commit the step that leads to it."""
    if held_key(worker) == start:
        return worker.holdings.held is not None and worker.holdings.held.where != "none"
    return in_memory(worker) and worker.holdings.prepared == start


def holders(members: Sequence[Worker], start: Key) -> list[bool]:
    """For each rank, whether it holds the state; of a fresh one the lowest rank's is taken.

    Fresh states are equal on equal machines only, so whoever remembers one comes first.
    """
    held = [holds(worker, start) for worker in members]
    return held if any(held) else [rank == 0 for rank in range(len(members))]


def start_held(job: Job) -> m.Held:
    """What a member holds once it runs in the job's newest generation."""
    return m.Held(
        job=job.id,
        generation=job.start_generation,
        step=job.start_step,
        digest="",
        where="memory",
    )


def held_by(message: m.Frozen | m.Finished) -> m.Held:
    """What a worker holds that has left its generation."""
    if isinstance(message, m.Frozen):
        return message.held[0] if message.held else NOTHING_HELD
    return m.Held(
        job=message.job,
        generation=message.held_generation,
        step=message.step,
        digest=message.digest,
        where="memory",
    )


# --- the members -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Members of a roster in rank order, and who must stay out for want of a working link."""

    members: list[Worker]
    barred: list[Worker]


def choose(
    workers: Iterable[Worker], *, start: Key, max_workers: int, bad_links: Collection[Pair]
) -> Choice:
    """The members of the next roster.

    Holders of the state come first when there are more than `max_workers`; those who leave as soon
    as they have handed their state over do not count.  Ranks go by name, so that they do not depend
    on luck, unless a bad link stands between two neighbours.  If no order avoids all bad links,
    somebody who has one stays out: rather one that lacks the state, then the one with most bad
    links, then the last by name.
    """
    candidates = sorted(workers, key=lambda w: (not holds(w, start), natural_key(w.name)))
    barred: list[Worker] = []
    while True:
        leaving = [worker for worker in candidates if worker.leaving]
        staying = [worker for worker in candidates if not worker.leaving]
        chosen = leaving + staying[: min(max_workers, m.MAX_WORLD - len(leaving))]
        chosen.sort(key=lambda w: natural_key(w.name))
        order = ring_order([worker.name for worker in chosen], bad_links)
        if order is not None:
            by_name = {worker.name: worker for worker in chosen}
            return Choice(members=[by_name[name] for name in order], barred=barred)
        worst = max(chosen, key=lambda w: _blame(w, chosen, start, bad_links))
        candidates.remove(worst)
        barred.append(worst)


def _blame(
    worker: Worker, chosen: Sequence[Worker], start: Key, bad_links: Collection[Pair]
) -> tuple[bool, int, tuple[tuple[int, int, str], ...]]:
    broken = sum(pair_of(worker.name, other.name) in bad_links for other in chosen)
    return broken > 0 and not holds(worker, start), broken, natural_key(worker.name)


def ring_order(names: Sequence[str], bad_links: Collection[Pair]) -> list[str] | None:
    """The first order of `names` in which no bad link joins neighbours; None if there is none."""
    if not names:
        return []
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
        if pair_of(order[-1], candidate) not in bad_links:
            order.append(candidate)
            untried.append([name for name in names if name not in order])


def roster_id(
    job: str, generation: int, roster: Sequence[Worker] | Sequence[m.Member], *, start: Key
) -> int:
    """An id that no other roster has: incarnations are drawn at random by the workers."""
    text = f"{job}\0{generation}\0{start[0]}\0{start[1]}\0"
    text += "\0".join(f"{w.name}={w.incarnation}" for w in roster)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


# --- who fits whom -----------------------------------------------------------------------------


def reference(reports: Sequence[m.Warmed]) -> m.Warmed:
    """The report that most workers agree with; of equally common ones the first."""
    return max(reports, key=lambda one: sum(not disagreement(one, other) for other in reports))


def disagreement(
    reference: m.Warmed, other: m.Warmed, *, by: tuple[str, str] = ("others", "it")
) -> str:
    """Why two workers must not train together; empty when they may.  `by`: their names.

    The code of the task is looked at first: it may be why the rest differs.
    """
    code, known = other.task_digest, reference.task_digest
    if code and known and code != known:
        return (
            f"{by[1]} has other code of the task ({code[:12]}) than {by[0]} ({known[:12]}):"
            " have `dtdctl submit` ship it, or install the same version on both"
        )
    if reference.dataset_rows != other.dataset_rows:
        return f"its dataset has {other.dataset_rows} rows, not {reference.dataset_rows}"
    if reference.dataset_fingerprint != other.dataset_fingerprint:
        return "sampled rows of its dataset, or their order, differ from the other workers'"
    if reference.plan_digest != other.plan_digest:
        return "its model has other parameters than the other workers'"
    if reference.numerics_fingerprint != other.numerics_fingerprint:
        return (
            "its numerics differ (another torch version, device type or processor):"
            f" {other.numerics_fingerprint}, not {reference.numerics_fingerprint}"
        )
    if reference.steps_total != other.steps_total:
        return f"it would train {other.steps_total} steps, not {reference.steps_total}"
    return ""
