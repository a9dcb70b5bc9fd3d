"""How many workers each job gets, and which jobs give some away: numbers in, moves out.

A job names the least and the most workers that it takes (`elastic.workers`).  `shares` gives every
job its number:

1. a running job keeps what it has, up to its least, and is then filled up to its least;
2. the first jobs of the queue get their least, in their order, for as long as there is enough;
3. what is left goes to the jobs of the highest priority, one worker at a time to the job with the
   fewest, up to its most; then to those of the next priority.

The numbers follow from the jobs and from how many workers there are, not from where the workers
are; only a remainder stays with the job that has it.  So what has been moved stays, until a job
begins or ends, or a worker comes or goes.  `plan_moves` compares the numbers with what the jobs
have.  Pure: no states, no clock; `dtd.cluster.several_jobs.pools` carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dtd.text.shown import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A job that takes some of the workers.

    Attributes:
        job: its id.
        least, most: the ends of its `elastic.workers`.
        priority: its `elastic.priority`.
        has: its workers, without those that are about to leave.
        gives: how many of them could leave now.
        fit: workers without a job with which it can train; the job has failed on others.
        queued: whether it waits in the queue, and begins with its least or not at all.
    """

    job: str
    least: int
    most: int
    priority: int = 0
    has: int = 0
    gives: int = 0
    fit: int = 0
    queued: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Workers that leave one job for another.

    Attributes:
        source, to: ids of the jobs.
        count: number of workers.
        why: the reason, in words, about the job that gets them.
    """

    source: str
    to: str
    count: int
    why: str


def shares(claims: Sequence[Claim], workers: int) -> dict[str, int]:
    """The number of workers for each job, by its id.

    Args:
        claims: the running jobs, oldest first, then the queue in its order.
        workers: those of the running jobs, and those without a job.
    """
    given = {one.job: 0 if one.queued else min(one.has, one.least) for one in claims}
    left = workers - sum(given.values())
    sharing = [one for one in claims if not one.queued]
    most = {one.job: _within_reach(one, claims) for one in claims}
    for one in sorted(sharing, key=lambda one: -one.priority):
        more = min(left, min(one.least, most[one.job]) - given[one.job])
        given[one.job], left = given[one.job] + more, left - more
    for one in claims:
        if one.queued and one.least > left:
            break  # nothing overtakes it
        if one.queued:
            given[one.job], left = one.least, left - one.least
            sharing.append(one)
    while left > 0:
        takers = [one for one in sharing if given[one.job] < most[one.job]]
        if not takers:
            break
        best = min(takers, key=lambda one: _turn(one, given[one.job]))
        given[best.job], left = given[best.job] + 1, left - 1
    return given


def _within_reach(claim: Claim, claims: Sequence[Claim]) -> int:
    """The most that a job takes and can get: idle workers that fit, and what others can give."""
    others = sum(max(0, one.has - one.least) for one in claims if one is not claim)
    return claim.most if claim.queued else min(claim.most, claim.has + claim.fit + others)


def _turn(claim: Claim, given: int) -> tuple[int, int, bool]:
    """Order in which jobs take one more; a remainder stays where it is."""
    return -claim.priority, given, claim.has <= given


def plan_moves(claims: Sequence[Claim], without: int, coming: int = 0) -> list[Move]:
    """The moves that are still needed for every job to have its number.

    A worker is taken from the job of the lowest priority, then from the one with most beyond its
    least, then from the newest.

    Args:
        claims: the running jobs, oldest first, then the queue in its order.
        without: workers without a job.
        coming: workers that are leaving a job for another one.
    """
    given = shares(claims, sum(one.has for one in claims) + without + coming)
    spare = {one.job: min(one.has - given[one.job], one.gives) for one in claims}
    free, moves, newest = without + coming, list[Move](), [*reversed(claims)]
    for to in sorted(claims, key=lambda one: (one.has >= one.least, -one.priority)):
        lacks = given[to.job] - to.has
        met = min(free, max(lacks, 0))
        free, lacks = free - met, lacks - met
        for source in sorted(newest, key=lambda one: (one.priority, one.least - one.has)):
            count = min(lacks, spare[source.job])
            if count <= 0:
                continue
            spare[source.job], lacks = spare[source.job] - count, lacks - count
            why = _why(to, source)
            moves.append(Move(source=source.job, to=to.job, count=count, why=why))
    return moves


def _why(to: Claim, source: Claim) -> str:
    """Why one job gets a worker of another."""
    if to.queued:
        return f"{to.job} waits for its least, {counted(to.least, 'worker')}"
    if to.has < to.least:
        return f"{to.job} has {to.has} of its least, {counted(to.least, 'worker')}"
    if to.priority > source.priority:
        return f"{to.job} has priority {to.priority}, {source.job} {source.priority}"
    return f"{to.job} has {counted(to.has, 'worker')}, {source.job} {source.has}"


def why_no_more(claim: Claim, claims: Sequence[Claim], given: Mapping[str, int]) -> str:
    """Why a running job has fewer workers than it takes at most; empty if it has as many."""
    if claim.has >= claim.most:
        return ""
    if claim.has < given[claim.job]:
        return f"{counted(given[claim.job] - claim.has, 'more worker')} to come"
    others = [one for one in claims if one is not claim and given[one.job]]
    above = [one.job for one in others if one.priority > claim.priority]
    equal = [one.job for one in others if one.priority == claim.priority]
    if above:
        return f"{', '.join(above)} {'have' if len(above) > 1 else 'has'} a higher priority"
    if equal:
        return f"shares evenly with {', '.join(equal)}"
    return "there are no more workers"
