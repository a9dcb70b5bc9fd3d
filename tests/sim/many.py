"""Many random plans, one after another or several at a time, and what they came to."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dtd.core.membership.transitions import JobState
from tests.sim import plans

SEEDS_AT_A_TIME = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of one seed; `failure` is empty when no rule was broken."""

    seed: int
    failure: str
    commits: int
    frames: int
    generations: int
    lost_steps: int
    virtual_s: float


def play(seed: int) -> Played:
    """Run the plan of a seed."""
    cluster = plans.draw(seed)
    failure = ""
    try:
        cluster.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed belongs to it
        failure = f"{type(error).__name__}: {error}"
    else:
        ended = cluster.job()
        may_be_cancelled = ended.state is JobState.CANCELLED and cluster.planned("cancel")
        reasons = ("the task raised", *(("there is no driver",) if cluster.machines.broken else ()))
        may_have_failed = ended.state is JobState.FAILED and any(
            reason in ended.reason for reason in reasons
        )
        if ended.state is not JobState.DONE and not may_be_cancelled and not may_have_failed:
            failure = f"job {ended.id} is {ended.state}: {ended.reason}"
    return Played(
        seed=seed,
        failure=failure,
        commits=cluster.oracle.commits,
        frames=cluster.oracle.frames,
        generations=cluster.oracle.generations,
        lost_steps=sum(job.steps_lost for job in cluster.oracle.ended_jobs.values()),
        virtual_s=cluster.now_s,
    )


def play_all(seeds: Sequence[int], *, jobs: int) -> Iterator[Played]:
    """Run the plans of all seeds, in whatever order they come to their end."""
    if jobs == 1:
        yield from map(play, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(play, seeds, chunksize=SEEDS_AT_A_TIME)


def summary(played: Sequence[Played]) -> str:
    """What all of them came to, in words."""
    failed = [one for one in played if one.failure]
    return (
        f"{len(played)} seeds, {sum(one.commits for one in played)} commits,"
        f" {sum(one.frames for one in played)} frames,"
        f" {sum(one.generations for one in played)} generations,"
        f" {sum(one.lost_steps for one in played)} steps lost with all who remembered them,"
        f" {sum(one.virtual_s for one in played) / 3600:.1f} h of virtual time,"
        f" {len(failed)} failures"
    )
