"""Runs many random plans, one after another or in parallel, and summarizes the results."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from dtd.cluster.machine import MAX_DEADLY_GENERATIONS
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from tests.sim import plans
from tests.sim.cluster import Cluster, NothingEnds

SEEDS_AT_A_TIME = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of one seed; `failure` is empty if no rule was broken."""

    seed: int
    failure: str
    commits: int
    frames: int
    generations: int
    moves: int
    lost_steps: int
    virtual_s: float


def play(seed: int, *, sharded: bool = False, beside: bool = False) -> Played:
    """Run the plan of a seed: of one job or of several beside each other, perhaps sharded."""
    draw = plans.draw_beside if beside else plans.draw
    cluster = draw(seed, sharded=sharded)
    failure = ""
    try:
        cluster.run()
    except Exception as error:  # noqa: BLE001 - any error is reported with its seed
        if not (isinstance(error, NothingEnds) and cluster.rightly_waits()):
            failure = f"{type(error).__name__}: {error}"
    else:
        judged = cluster.oracle.ended_jobs.values() if beside else [cluster.job()]
        failure = next(filter(None, (_why_wrong(cluster, ended) for ended in judged)), "")
    return Played(
        seed=seed,
        failure=failure,
        commits=cluster.oracle.commits,
        frames=cluster.oracle.frames,
        generations=cluster.oracle.generations,
        moves=cluster.oracle.allotments.moves,
        lost_steps=sum(job.steps_lost for job in cluster.oracle.ended_jobs.values()),
        virtual_s=cluster.now_s,
    )


def _why_wrong(cluster: Cluster, ended: Job) -> str:
    """Why a job must not have ended as it has; empty if it may."""
    may_be_cancelled = ended.state is JobState.CANCELLED and cluster.planned("cancel")
    reasons = ["the task raised", *(["there is no driver"] if cluster.machines.broken else [])]
    killed = cluster.struck["crash"] >= MAX_DEADLY_GENERATIONS
    if killed or cluster.oracle.lineage.lost(ended.id):  # repeated steps prove no progress
        reasons.append("kills worker after worker")
    if cluster.struck["damage"] + cluster.struck["corrupt"] > 1:
        reasons.append("replicas differ again")
    may_have_failed = ended.state is JobState.FAILED and any(
        reason in ended.reason for reason in reasons
    )
    if ended.state is JobState.DONE or may_be_cancelled or may_have_failed:
        return ""
    return f"job {ended.id} is {ended.state}: {ended.reason}"


def play_all(
    seeds: Sequence[int], *, jobs: int, sharded: bool = False, beside: bool = False
) -> Iterator[Played]:
    """Run the plans of all seeds; yields the results in order of completion."""
    one_plan = partial(play, sharded=sharded, beside=beside)
    if jobs == 1:
        yield from map(one_plan, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(one_plan, seeds, chunksize=SEEDS_AT_A_TIME)


def summary(played: Sequence[Played]) -> str:
    """A summary of all results as text."""
    failed = [one for one in played if one.failure]
    return (
        f"{len(played)} seeds, {sum(one.commits for one in played)} commits,"
        f" {sum(one.frames for one in played)} frames,"
        f" {sum(one.generations for one in played)} generations,"
        f" {sum(one.moves for one in played)} workers moved,"
        f" {sum(one.lost_steps for one in played)} steps lost with all who remembered them,"
        f" {sum(one.virtual_s for one in played) / 3600:.1f} h of virtual time,"
        f" {len(failed)} failures"
    )
