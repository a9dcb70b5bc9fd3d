"""The oracle's rules for what must be on a disk or in memory when workers are let go.

* the holders of a checkpoint that the coordinator names have it;
* a worker is let go while its job continues only if others remember as much as it does;
* a job that is done has completed all its steps, with equal results on all workers, and its result
  is on a disk;
* a job that was cancelled or has failed leaves on a disk the state held by workers that no fault
  affected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from dtd.engine.shards import NOTHING, ShardSet, united
from tests.sim.agreements import Agreements
from tests.sim.causes import COORDINATOR, Causes
from tests.sim.lineage import Memory, require
from tests.sim.replica import Key, State, expected
from tests.sim.rows import data_of
from tests.sim.shard_rules import known


class Keeping:
    """The rules for all jobs.

    Args:
        causes: which faults there were.
        agreements: what ranks have agreed on.
        remembered: the states of a job that living workers have in memory.
        saved: the newest step of a job on any disk.
        given_up: whether a state is of steps that the job has left.
    """

    def __init__(
        self,
        causes: Causes,
        agreements: Agreements,
        *,
        remembered: Callable[[str], Iterable[Memory]],
        saved: Callable[[str], int],
        given_up: Callable[[State], bool],
    ) -> None:
        self._causes, self._agreements = causes, agreements
        self._remembered, self._saved, self._given_up = remembered, saved, given_up
        self._published: dict[tuple[str, str, int, int], ShardSet] = {}

    def on_disks(self, job: str) -> set[Key]:
        """Keys of all checkpoints of a job that were ever published."""
        return {(of, step) for _, one, of, step in self._published if one == job}

    def published(self, name: str, state: State) -> None:
        """A worker has published a checkpoint."""
        key = (name, state.job, *state.key)
        self._published[key] = self._published.get(key, NOTHING) | state.part

    def written(self, job: Job) -> None:
        """The coordinator stores a job; the recorded holders of its checkpoint must have it."""
        key = (job.checkpoint_generation, job.checkpoint_step)
        for name in job.checkpoint_holders:
            known = (name, job.id, *key) in self._published
            require(known, "a checkpoint is said to be where it is not", name, key)
        if job.terms.sharded and job.checkpoint_step:
            parts = [self._published[name, job.id, *key] for name in job.checkpoint_holders]
            require(united(parts).is_whole, "a part of a checkpoint counts as all of it", job.id)

    def let_go(self, name: str, job: str) -> None:
        """A worker is released while its job continues; no committed step may be lost by that."""
        memories = [one for one in self._remembered(job) if not self._given_up(one.state)]
        own = [memory.state.step for memory in memories if memory.name == name]
        others = [memory.state.step for memory in memories if memory.name != name]
        if any(memory.state.atoms for memory in memories):  # together they hold a state, or none
            most = max(memory.state.step for memory in memories)
            others = [known((one for one in memories if one.name != name), most=most)]
            own = [known(memories, most=most)] if own else []
        if own:
            kept = max([*others, self._saved(job), 0])
            require(kept >= own[0], "the last one that remembers is let go", name, own[0], kept)

    def ended(self, job: Job, connected: Collection[str]) -> None:
        """A job has ended, when these processes were connected to the coordinator."""
        if job.state is JobState.DONE:
            self._done(job, connected)
        elif COORDINATOR not in self._causes.touched and job.id not in self._causes.discarded:
            self._kept(job)

    def _kept(self, job: Job) -> None:
        saved = self._saved(job.id)
        sharded = job.terms.sharded
        for memory in self._remembered(job.id):
            if sharded and known(self._untouched(job), most=memory.state.step) <= saved:
                continue
            require(
                memory.name in self._causes.touched or memory.state.step <= max(saved, 0),
                "a job ends and discards steps that somebody holds",
                f"{memory.name} holds step {memory.state.step}, saved is {saved}",
            )

    def _untouched(self, job: Job) -> list[Memory]:
        return [one for one in self._remembered(job.id) if one.name not in self._causes.touched]

    def _copied(self, job: Job, connected: Collection[str]) -> None:
        """Check that the requested number of disks, or those of all holders, have the result."""
        has = {name for name, of, _, step in self._published if (of, step) == (job.id, job.step)}
        holders = {one.name for one in self._remembered(job.id) if one.state.step == job.step}
        enough = len(has) >= int(job.spec["checkpoint"]["copies"])
        all_have = holders & set(connected) <= has
        enough = enough or job.terms.sharded  # that the parts cover the state is checked before
        require(enough or all_have, "too few disks have the result", sorted(has), sorted(holders))

    def _done(self, job: Job, connected: Collection[str]) -> None:
        require(self._saved(job.id) == job.step, "no disk has the result", job.id)
        require(job.step == job.total_steps, "a job is done before its last step", job.step)
        self._copied(job, connected)
        digests = set(job.result["replica_digests"].values())
        data = data_of(job.spec)
        require(len(digests) == 1, "the replicas of a finished job differ", job.result)
        honest = {expected(job.id, job.step, data)}
        if self._causes.went_back:  # a restored store may have forgotten
            # Each of these was checked when it was committed.
            honest |= self._agreements.contents(job.id, job.step)
        require(
            self._causes.flipped or digests <= honest,
            "the replicas of a finished job differ from an honest one",
            job.result,
        )
