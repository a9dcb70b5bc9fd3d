"""The agreements of all ranks: whether a step is committed, and that their states are equal.

Replicas are equal by construction, so a digest that differs means a faulty machine or a task that
is not deterministic.  The digest of a state is sent in the control word of the step after it, and
separately when a generation begins or ends.  Which digests are compared depends on the step number
alone, so every rank compares the same ones.  Of a sharded state, ranks also compare what several
of them hold before it moves to others.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from dtd.engine.control_word import Comparison, ControlWord, Flags, compare
from dtd.engine.regroup import check_claims
from dtd.engine.shard_digests import Shared, Tally, combined, compared
from dtd.engine.step_protocol import Ruling
from dtd.errors import DivergenceError, UnreadableWord
from dtd.exchange.api import Collective
from dtd.train.session import JobSession
from dtd.train.state.difference import first_difference
from dtd.train.state.tensors import shard_digests, shards_digest, state_digest
from dtd.train.step import Clock


def exchange(session: JobSession, ring: Collective, flags: Flags) -> ControlWord:
    """Exchange control words; returns if and only if the step is to be committed.

    Raises:
        DivergenceError: the states before this step differ; nothing of it was applied.
        UnreadableWord: a rank's data cannot be read, or it vetoes the step.
    """
    engine = session.engine
    disputed = _combine(session, ring)
    digest_step, digest = session.checkpoints.deferred.said
    entry = engine.entry(flags, digest_step=digest_step, digest=digest)
    if digest:
        session.compared = (ring.generation, digest_step, digest)
    verdict = engine.judge(ring.gather(entry))
    word = verdict.word
    if verdict.ruling is not Ruling.COMMIT:
        session.discard()
    if verdict.ruling is Ruling.DIVERGED:
        result = Comparison(dissenters=word.dissenters, majority=word.majority)
        raise _diverged(session, ring, result, disputed)
    if verdict.ruling is Ruling.REDO:
        # Who offers an entry has all sums of the step, so an honest rank has no reason to veto.
        raise UnreadableWord(word.vetoes[0], f"it vetoes step {session.replica.step}")
    if word.digest_agreed:
        session.checkpoints.agreed()
    return word


def agree(
    session: JobSession, ring: Collective, clock: Clock, *, voters: Collection[int] | None = None
) -> bytes:
    """Compare the digest of the live state on all ranks, and return it.

    Args:
        session: holds the state.
        ring: connects the ranks.
        clock: records the times of the open step.
        voters: ranks that did not copy their state from another one in this generation; None for
            all.

    Raises:
        DivergenceError: the digests differ.
    """
    tally = _digests(session, ring, clock)
    _judge(session, ring, tally, voters)
    return tally.digests[ring.rank]


def compare_moving(
    session: JobSession,
    ring: Collective,
    voters: Collection[int] | None,
    shared: Sequence[Shared],
) -> None:
    """Compare parts of a sharded state that are about to move, on all ranks that hold them.

    Args:
        session: holds this rank's part of the state.
        ring: connects the ranks; a step is open.
        voters: as for `agree`.
        shared: the parts.

    Raises:
        DivergenceError: holders of a part differ.
        UnreadableWord: a rank claims a part that it cannot have.
    """
    check_claims(shared, voters)
    shards = session.replica.shards
    assert shards is not None, "the state is not sharded"
    mine = (one.part for one in shared if ring.rank in one.holders)
    hashes = [shards_digest(shards, part, lambda: record_progress(session, ring)) for part in mine]
    tally = compared(shared, ring.gather(b"".join(hashes)))
    if tally.disputed is not None:  # otherwise what `agree` compares is the rank's last word
        _judge(session, ring, tally, voters)


def _judge(
    session: JobSession, ring: Collective, tally: Tally, voters: Collection[int] | None
) -> None:
    """Compare the digests of the live state.

    Raises:
        DivergenceError: they differ.
    """
    step = session.replica.step
    session.compared = (ring.generation, step, tally.digests[ring.rank])
    result = compare([(step, one) for one in tally.digests], voters=voters)
    if result.dissenters:
        raise _diverged(session, ring, result, tally.disputed)


def _digests(session: JobSession, ring: Collective, clock: Clock) -> Tally:
    """The digests of the live state on all ranks."""
    replica, step = session.replica, session.replica.step
    if replica.shards is not None:
        hashed = shard_digests(replica, lambda: record_progress(session, ring))
        words = gather_aside(ring, clock, hashed.encode())
        tally = combined(words, replica.shards.division)
        session.checkpoints.deferred.combine(step, hashed, tally.digests[ring.rank])
        return tally
    digest = session.checkpoints.deferred.known(step)
    if digest is None:
        digest = state_digest(replica, lambda: record_progress(session, ring))
    return Tally(digests=tuple(gather_aside(ring, clock, digest)), disputed=None)


def _combine(session: JobSession, ring: Collective) -> Shared | None:
    """Compute the digest of a sharded state, if one is due, from all ranks' hashes.

    Returns:
        the first shards in which their holders differ; None if there are none.
    """
    deferred = session.checkpoints.deferred
    pending = deferred.uncombined
    shards = session.replica.shards
    if pending is None or shards is None:
        return None
    step, hashed = pending
    tally = combined(ring.gather(hashed.encode()), shards.division)
    deferred.combine(step, hashed, tally.digests[ring.rank])
    return tally.disputed


def record_progress(session: JobSession, ring: Collective) -> None:
    """Report progress, and raise if the generation has ended, so that long work is cut short."""
    session.reporter.progress()
    ring.check()


def gather_aside(ring: Collective, clock: Clock, word: bytes) -> list[bytes]:
    """Gather outside of training; the time does not count as its communication."""
    begun_s = time.perf_counter()
    words = ring.gather(word)
    clock.aside_s += time.perf_counter() - begun_s
    return words


def _diverged(
    session: JobSession, ring: Collective, result: Comparison, disputed: Shared | None
) -> DivergenceError:
    """Drop pending digests, and describe which ranks differ, and in which entry first."""
    session.checkpoints.drop()
    step = session.replica.step
    found = first_difference(
        session.replica,
        ring.gather,
        session.reporter.progress,
        rank=ring.rank,
        disputed=disputed,
    )
    others = "the others" if result.majority else "others, and no state has a majority"
    first = f"; what differs first is {found.meaning}" if found.entry else ""
    return DivergenceError(
        f"after step {step}, in generation {ring.generation}, ranks {list(result.dissenters)}"
        f" hold another state than {others}{first}",
        dissenters=result.dissenters,
        majority=result.majority,
        step=step,
        entry=found.entry,
    )
