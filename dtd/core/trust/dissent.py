"""Whose state differs: judged by each member's own word of its own digest, by nobody else's of it.

A rank offers the digest of its state before it sees the others', and tells the newest one that it
has offered when it leaves its generation (FROZEN, FINISHED).  So if one rank has seen that states
differ, every rank can say what its own was, also one that was stopped before it saw anything.  Once
all have left, their words are compared: nobody is put out because another member says so, and a
member that says so without reason is named.

    more than half have one digest    a member that has another one starts afresh
    no digest has a majority          nobody's memory of that generation counts; if that happens
                                      again at the same point, the job fails (`divergence`)

A digest that is known to be what all ranks agreed on (`dtd.core.trust.vouching`) outweighs any
word.  A word that is missing decides nothing: what differs is found when the next generation
compares the states that it starts from.  Pure: reads the books; `dtd.core.membership.suspicion`
acts on it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from dtd.core.membership import roster as choice
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.state import ClusterState
from dtd.core.membership.state_records import Finding
from dtd.core.trust import vouching
from dtd.wire import messages as m

DIVERGED: Final = "diverged"
MINORITY: Final = "its state differs from the majority's"
NO_MAJORITY: Final = "states differ, and none has a majority"


def claims(books: ClusterState) -> list[tuple[str, m.Frozen]]:
    """Those who say that states differ, and their words."""
    frozen = [
        (name, one) for name, one in books.run.last_words.items() if isinstance(one, m.Frozen)
    ]
    return [(name, one) for name, one in frozen if one.evidence == DIVERGED]


def find(books: ClusterState, job: Job) -> Finding | None:
    """Which digest counts after the last comparison, if any; None if that cannot be told."""
    step, said = _newest(books)
    without = [claim for _, claim in claims(books) if not claim.suspect]
    if without and 2 * len(without) > len(books.run.last_words):
        return Finding(books.run.generation, step or without[0].diverged_step, "")
    known = _agreed(books, job, step)
    if known:
        return Finding(books.run.generation, step, known)
    if len(said) < 2:
        return None
    one, *others = set(said.values())
    if not others:
        return Finding(books.run.generation, step, one)
    brought = books.run.brought if step == books.run.start_step else frozenset()
    # Where some brought the state that all start from, the others have theirs from them.
    votes = [digest for name, digest in said.items() if not brought or name in brought]
    if len(votes) < 2:
        return None
    digest, times = Counter(votes).most_common(1)[0]
    if 2 * times > len(votes):
        return Finding(books.run.generation, step, digest)
    left = [one for one in books.available() if one.holdings.frozen_in == books.run.generation]
    silent = [one for one in left if choice.in_memory(one) and one.name not in said]
    return None if silent else Finding(books.run.generation, step, "")


def why_distrusted(books: ClusterState, worker: Worker, word: m.Frozen | m.Finished | None) -> str:
    """Why what a worker remembers of the generation does not count; empty if it may."""
    if word is None or not choice.in_memory(worker):
        return ""
    if books.trust.distrusted == word.generation:
        return NO_MAJORITY
    finding = books.trust.finding
    if finding is None or finding.generation != word.generation:
        return ""
    step, digest = _own_digest(word)
    return MINORITY if digest and step == finding.step and digest != finding.digest else ""


def contradicted(books: ClusterState, job: Job) -> list[tuple[str, str]]:
    """(name, why) of those who say that states differ, and by the members' own words do not."""
    step, said = _newest(books)
    counts = books.trust.finding.digest if books.trust.finding is not None else ""
    found = []
    for name, claim in claims(books):
        about = [claim.suspect] if claim.suspect else job.roster
        if all(said.get(one) == counts != "" for one in about):
            whose = f"{claim.suspect}'s state differs" if claim.suspect else NO_MAJORITY
            why = f"{name} says that {whose}; by the members' own digests after step {step} it"
            found.append((name, f"{why} does not"))
    return found


def _own_digest(word: m.Frozen | m.Finished) -> tuple[int, str]:
    """(committed steps, digest) that a member says it has compared with the others last."""
    if isinstance(word, m.Finished):
        return word.step, word.digest
    return word.compared_step, word.compared_digest


def _newest(books: ClusterState) -> tuple[int, dict[str, str]]:
    """(step, digest by name) of the last comparison: who went on to it agreed in all earlier."""
    own = {name: _own_digest(word) for name, word in books.run.last_words.items()}
    step = max((step for step, digest in own.values() if digest), default=0)
    return step, {name: one for name, (at, one) in own.items() if one and at == step}


def _agreed(books: ClusterState, job: Job, step: int) -> str:
    """The digest of that state which the ranks told before; empty if none is known."""
    start = (job.start_generation, job.start_step)
    key = (books.run.generation, step) if step > start[1] else start
    known = vouching.remembered(job.agreed) if step >= start[1] else ()
    return next((one.digest for one in known if (one.generation, one.step) == key), "")
