"""The agreements of all ranks: whether a step is committed, and that their states are equal.

Replicas are equal by construction, so a digest that differs means a faulty machine or a task that
is not deterministic.  The digest of a state is sent in the control word of the step after it, and
separately when a generation begins or ends.  Which digests are compared depends on the step number
alone, so every rank compares the same ones.  Of a sharded state, ranks also compare what several
of them hold before it moves to others.

When digests differ, each rank hashes its entries one by one, and all search the list together for
the first one that differs (`dtd.engine.digests`), which the message names with its probable
cause.  What becomes of the job is decided by the coordinator; nothing of the state is changed here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Final

import xxhash

from dtd.checkpoint.format import canonical_json
from dtd.engine.control_word import Comparison, ControlWord, Flags, compare
from dtd.engine.digests import Shared, Tally, combined, compared, search
from dtd.engine.shards import ShardSet
from dtd.errors import DivergenceError, ProtocolError, RingBroken
from dtd.exchange.api import Collective
from dtd.strategy.wire_memory import tensor_bytes
from dtd.train.optim.schedule import SCHEDULE
from dtd.train.record import StepRecord
from dtd.train.session import JobSession
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import (
    AVERAGE,
    GROUPS,
    MODEL,
    OPTIMIZER,
    STRATEGY,
    TASK,
    dtype_name,
    metadata,
    named_tensors,
    on_host,
    shard_digests,
    shards_digest,
    state_digest,
)
from dtd.train.state.weights import plain_name

Gather = Callable[[bytes], list[bytes]]

_MORE: Final = "(more entries)"


def first_difference(
    replica: Replica,
    gather: Gather,
    progress: Callable[[], None] = lambda: None,
    *,
    rank: int = 0,
    disputed: Shared | None = None,
) -> tuple[str, str]:
    """Search the states of all ranks for the first entry in which they differ.

    Args:
        replica: this rank's state.
        gather: gathers bytes from all ranks, which all search as well.
        progress: called with every entry that is hashed.
        rank: this one.
        disputed: shards of the state in which their holders differ, which are searched if the
            common part is equal; None if there are none.

    Returns:
        the entry's name, and the entry with its probable cause for a person; both are empty if
        none was found, or if the ring broke meanwhile.
    """
    try:
        entry = _searched(_entries(replica, progress), None, gather)
        if entry or disputed is None:
            return entry, _meaning(replica, entry) if entry else ""
        held = rank in disputed.holders
        names = _shard_names(replica)
        entries = _shard_entries(replica, disputed.part, progress) if held else []
        entry = _searched(entries, disputed.holders, gather, list(names))
    except (RingBroken, ProtocolError):
        return "", ""
    return entry, _meaning(replica, entry, names.get(entry, "")) if entry else ""


def _searched(
    entries: Sequence[tuple[str, bytes]],
    among: Collection[int] | None,
    gather: Gather,
    names: Sequence[str] | None = None,
) -> str:
    """Return the name of the first entry that differs; empty if none does.

    Args:
        entries: names and hashes of this rank's entries.
        among: the ranks that have them; None for all.
        gather: gathers bytes from all ranks.
        names: of all entries, where ranks may have none themselves.
    """
    looking = search([content for _, content in entries], among)
    try:
        word = next(looking)
        while True:
            word = looking.send(gather(word))
    except StopIteration as found:
        index: int | None = found.value
    known = [name for name, _ in entries] if names is None else names
    if index is None:
        return ""
    return known[index] if index < len(known) else _MORE


def _entries(replica: Replica, progress: Callable[[], None]) -> list[tuple[str, bytes]]:
    """Names and hashes of all that a digest covers, in the digest's order; counters come last."""
    found = []
    for name, tensor in named_tensors(replica).items():
        content = xxhash.xxh3_64()
        content.update(canonical_json([name, dtype_name(name, tensor.dtype), list(tensor.shape)]))
        content.update(tensor_bytes(on_host(tensor)))
        found.append((name, content.digest()))
        progress()
    for name, value in metadata(replica).items():
        found.append((name, xxhash.xxh3_64(canonical_json([name, value])).digest()))
    return found


def _shard_names(replica: Replica) -> dict[str, str]:
    """Names of the sharded entries, and of the parameter that each of them is about."""
    assert replica.shards is not None, "the state is not sharded"
    tensors = replica.shards.tensors()
    of_place = {
        one.place: one.name.removeprefix(MODEL) for one in tensors if one.name.startswith(MODEL)
    }
    return {one.name: of_place[one.place] for one in tensors}


def _shard_entries(
    replica: Replica, part: ShardSet, progress: Callable[[], None]
) -> list[tuple[str, bytes]]:
    """Names and hashes of the sharded entries, as far as they are in a part that is held here."""
    assert replica.shards is not None, "the state is not sharded"
    found, elements = [], replica.shards.buckets()
    for tensor in replica.shards.tensors():
        content, at = xxhash.xxh3_64(tensor.name.encode()), tensor.place
        for start, stop in part.ranges(elements[at.bucket]):
            for piece in tensor.pieces:
                begin = max(start - at.start, piece.start) - piece.start
                end = min(stop - at.start, piece.stop) - piece.start
                if begin < end:
                    content.update(tensor_bytes(on_host(piece.values[begin:end])))
        found.append((tensor.name, content.digest()))
        progress()
    return found


def _meaning(replica: Replica, entry: str, parameter: str = "") -> str:
    """Describe an entry; `parameter` names the one that sharded optimizer state is about."""
    if entry == _MORE:
        return "some ranks have optimizer state that others lack"
    if entry.startswith(MODEL):
        return _of_model(replica, entry.removeprefix(MODEL))
    if entry.startswith(TASK) or entry == "task":
        return (
            f"{entry.removeprefix(TASK)} of what the task keeps itself; it must be changed alike on"
            " all ranks, not by the rows of each"
        )
    if entry.startswith(OPTIMIZER):
        index, _, key = entry.removeprefix(OPTIMIZER).partition(".")
        names = [*chain.from_iterable(replica.grouped)]
        return (
            f"{key} in the optimizer's state of {parameter or names[int(index)]};"
            " all ranks give"
            " the optimizer the same gradients, so it probably draws at random, or keeps state"
            " that dtd does not know"
        )
    if entry.startswith(STRATEGY):
        return (
            f"{entry.removeprefix(STRATEGY)} of the strategy {replica.strategy}; all ranks compute"
            " it from the same sums, so a machine probably computes wrongly"
        )
    if entry.startswith(AVERAGE):
        return (
            f"the average of {entry.removeprefix(AVERAGE)}; only its parameter moves it, so a"
            " machine probably computes wrongly"
        )
    if entry == "schedule" or entry.startswith(SCHEDULE):
        return (
            "the state of the schedule that build_schedule() made; it probably depends on the rank"
            " or draws at random"
        )
    kind = "" if entry.startswith(GROUPS) else ", which is no tensor"
    return (
        f"{entry}{kind}; the task probably changes the optimizer's groups by itself, not alike on"
        " all ranks"
    )


def _of_model(replica: Replica, name: str) -> str:
    if name in {plain_name(trained) for trained, _ in replica.trained}:
        return (
            f"the parameter {name}; all ranks update it by the same gradients, so something else"
            " probably changes it: an optimizer that the task steps itself, an assignment in"
            " loss(), a random draw; or a machine computes wrongly"
        )
    if name in {plain_name(known) for known, _ in replica.model.named_parameters()}:
        return (
            f"the parameter {name}, which dtd does not train; the task probably changes it itself,"
            " by the rows of each rank"
        )
    return (
        f"the buffer {name}; probably it is changed outside of forward, or by a random draw or"
        " rows of one rank in a way that cannot be averaged"
    )


def exchange(session: JobSession, ring: Collective, flags: Flags) -> ControlWord:
    """Exchange control words; returns if and only if the step is to be committed.

    Raises:
        DivergenceError: the states before this step differ; nothing of it was applied.
        UnreadableWord: a rank's data cannot be read.
    """
    engine = session.engine
    disputed = _combine(session, ring)
    digest_step, digest = session.checkpoints.deferred.said
    entry = engine.entry(flags, digest_step=digest_step, digest=digest)
    word = engine.judge(ring.gather(entry))
    if word.compared is not None:
        if word.compared.dissenters:
            session.discard()
            raise _diverged(session, ring, word.compared, disputed)
        session.checkpoints.agreed()
    return word


def agree(
    session: JobSession,
    ring: Collective,
    record: StepRecord,
    *,
    voters: Collection[int] | None = None,
) -> bytes:
    """Compare the digest of the live state on all ranks, and return it."""
    tally = _digests(session, ring, record)
    _judge(session, ring, tally, voters)
    return tally.digests[ring.rank]


def compare_moving(
    session: JobSession,
    ring: Collective,
    voters: Collection[int] | None,
    shared: Sequence[Shared],
) -> None:
    """Compare parts of a sharded state that are about to move, on all ranks that hold them."""
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
    """Compare the digests of the live state."""
    step = session.replica.step
    result = compare([(step, one) for one in tally.digests], voters=voters)
    if result.dissenters:
        raise _diverged(session, ring, result, tally.disputed)


def _digests(session: JobSession, ring: Collective, record: StepRecord) -> Tally:
    """The digests of the live state on all ranks."""
    replica, step = session.replica, session.replica.step
    if replica.shards is not None:
        hashed = shard_digests(replica, lambda: record_progress(session, ring))
        words = timed_gather(ring, record, hashed.encode())
        tally = combined(words, replica.shards.division.segments)
        session.checkpoints.deferred.combine(step, hashed, tally.digests[ring.rank])
        return tally
    digest = session.checkpoints.deferred.known(step)
    if digest is None:
        digest = state_digest(replica, lambda: record_progress(session, ring))
    return Tally(digests=tuple(timed_gather(ring, record, digest)), disputed=None)


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
    tally = combined(ring.gather(hashed.encode()), shards.division.segments)
    deferred.combine(step, hashed, tally.digests[ring.rank])
    return tally.disputed


def record_progress(session: JobSession, ring: Collective) -> None:
    """Report progress, and raise if the generation has ended, so that long work is cut short."""
    session.reporter.progress()
    ring.check()


def timed_gather(ring: Collective, record: StepRecord, word: bytes) -> list[bytes]:
    """Gather outside of training; the time does not count as its communication."""
    begun_s = time.perf_counter()
    words = ring.gather(word)
    record.aside_s += time.perf_counter() - begun_s
    return words


def _diverged(
    session: JobSession, ring: Collective, result: Comparison, disputed: Shared | None
) -> DivergenceError:
    """Drop pending digests, and describe which ranks differ, and in which entry first."""
    session.checkpoints.drop()
    step = session.replica.step
    entry, meaning = first_difference(
        session.replica,
        ring.gather,
        session.reporter.progress,
        rank=ring.rank,
        disputed=disputed,
    )
    others = "the others" if result.majority else "others, and no state has a majority"
    first = f"; what differs first is {meaning}" if entry else ""
    return DivergenceError(
        f"after step {step}, in generation {ring.generation}, ranks {list(result.dissenters)}"
        f" hold another state than {others}{first}",
        dissenters=result.dissenters,
        majority=result.majority,
        step=step,
        entry=entry,
    )
