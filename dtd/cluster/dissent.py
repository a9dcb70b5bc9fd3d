"""Finds replicas that differ, using only each member's report of its own digest.

A rank publishes the digest of its state before it sees those of the others, and reports the newest
digest that it published when it leaves its generation (FROZEN, FINISHED).  So when one rank
detects that states differ, every rank can report its own digest, including a rank that was stopped
before it could compare.  The reports are compared once all members have left.  No member is
expelled on another member's word, and a member that accuses without grounds is named.

    more than half have one digest    a member with another digest restarts
    no digest has a majority          no state in memory of that generation counts; if that happens
                                      again at the same point, the job fails (`divergence`)

A digest on which all ranks are known to have agreed (`dtd.cluster.vouching`) outweighs any
report.  A missing report decides nothing: a remaining difference is found when the next generation
compares the states from which it starts.  Pure: reads the cluster's state;
`dtd.cluster.suspicion` acts on the result.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from dtd.cluster import roster as choice
from dtd.cluster import vouching
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.state_records import Finding
from dtd.wire import messages as m

DIVERGED: Final = "diverged"
MINORITY: Final = "its state differs from the majority's"
NO_MAJORITY: Final = "states differ, and none has a majority"


def claims(cluster: ClusterState) -> list[tuple[str, m.Frozen]]:
    """The members that report that states differ, each with its report."""
    frozen = [
        (name, one) for name, one in cluster.run.last_words.items() if isinstance(one, m.Frozen)
    ]
    return [(name, one) for name, one in frozen if one.evidence == DIVERGED]


def find(cluster: ClusterState, job: Job) -> Finding | None:
    """The digest that counts after the last comparison, if any; None if it cannot be determined."""
    step, said = _newest(cluster)
    without = [claim for _, claim in claims(cluster) if not claim.suspect]
    most = 2 * len(without) > len(cluster.run.last_words)
    if without and most and 2 * len(without) >= len(job.roster):  # others may reconnect later
        return Finding(cluster.run.generation, step or without[0].diverged_step, "")
    known = _agreed(cluster, job, step)
    if known:
        return Finding(cluster.run.generation, step, known)
    if len(said) < 2:
        return None
    one, *others = set(said.values())
    if not others:
        return Finding(cluster.run.generation, step, one)
    brought = cluster.run.brought if step == cluster.run.start_step else frozenset()
    # If some members brought the starting state, the others have copied theirs from them.
    votes = [digest for name, digest in said.items() if not brought or name in brought]
    if len(votes) < 2:
        return None
    digest, times = Counter(votes).most_common(1)[0]
    if 2 * times > len(votes):
        return Finding(cluster.run.generation, step, digest)
    left = [one for one in cluster.available() if one.holdings.frozen_in == cluster.run.generation]
    silent = [one for one in left if choice.in_memory(one) and one.name not in said]
    return None if silent else Finding(cluster.run.generation, step, "")


def why_distrusted(
    cluster: ClusterState, worker: Worker, word: m.Frozen | m.Finished | None
) -> str:
    """Why the worker's state in memory from the generation does not count; empty if it may."""
    if word is None or not choice.in_memory(worker):
        return ""
    if cluster.trust.distrusted == word.generation:
        return NO_MAJORITY
    finding = cluster.trust.finding
    if finding is None or finding.generation != word.generation:
        return ""
    step, digest = _own_digest(word)
    return MINORITY if digest and step == finding.step and digest != finding.digest else ""


def contradicted(cluster: ClusterState, job: Job) -> list[tuple[str, str]]:
    """(name, why) of members that report a difference which the members' own digests refute."""
    step, said = _newest(cluster)
    counts = cluster.trust.finding.digest if cluster.trust.finding is not None else ""
    found = []
    for name, claim in claims(cluster):
        about = [claim.suspect] if claim.suspect else job.roster
        if all(said.get(one) == counts != "" for one in about):
            whose = f"{claim.suspect}'s state differs" if claim.suspect else NO_MAJORITY
            why = f"{name} says that {whose}; by the members' own digests after step {step} it"
            found.append((name, f"{why} does not"))
    return found


def _own_digest(word: m.Frozen | m.Finished) -> tuple[int, str]:
    """(committed steps, digest) that the member reports as its last comparison with the others."""
    if isinstance(word, m.Finished):
        return word.step, word.digest
    return word.compared_step, word.compared_digest


def _newest(cluster: ClusterState) -> tuple[int, dict[str, str]]:
    """(step, digest by name) of the last comparison; its members agreed in all earlier ones."""
    own = {name: _own_digest(word) for name, word in cluster.run.last_words.items()}
    step = max((step for step, digest in own.values() if digest), default=0)
    return step, {name: one for name, (at, one) in own.items() if one and at == step}


def _agreed(cluster: ClusterState, job: Job, step: int) -> str:
    """The digest that the ranks have confirmed for the state at this step; empty if unknown.

    A sharded state has another digest in each division, so one of an earlier generation is none.
    """
    start = (job.start_generation, job.start_step)
    key = (cluster.run.generation, step) if step > start[1] else start
    if job.terms.sharded and key[0] != cluster.run.generation:
        return ""
    known = vouching.remembered(job.agreed) if step >= start[1] else ()
    return next((one.digest for one in known if (one.generation, one.step) == key), "")
