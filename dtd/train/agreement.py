"""What all ranks must agree on: whether a step is committed, and that their states are equal.

Replicas are equal by construction, so a digest that differs is a broken machine or a task that
does not compute the same thing twice.  Digests travel in the control word of the step after the
state that they are about, and by themselves where a generation begins or ends.  What is compared
is decided by the step number alone, so every rank compares the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from dtd.core.collective import Collective
from dtd.core.control_word import (
    NO_DIGEST_STEP,
    ControlEntry,
    ControlWord,
    compare,
    encode_entry,
    reduce_entries,
)
from dtd.errors import DivergenceError, RingBroken
from dtd.train.record import Flags
from dtd.train.session import Session
from dtd.train.state import state_digest
from dtd.train.step import Clock


def exchange(session: Session, ring: Collective, flags: Flags) -> ControlWord:
    """The control word: returns if and only if the step is to be committed.

    Raises:
        DivergenceError: the states before this step differ; nothing of it was applied.
    """
    pending = session.checkpoints.pending
    entry = ControlEntry(
        checkpoint=flags.checkpoint,
        stop=flags.stop,
        leave=flags.leave,
        yield_=flags.yield_,
        digest_step=pending.step if pending else NO_DIGEST_STEP,
        digest=pending.digest if pending else b"",
    )
    word = reduce_entries(ring.gather(encode_entry(entry)))
    if word.digest_agreed is False:
        session.discard()
        raise _diverged(session, ring, word.dissenters, majority=word.majority)
    if not word.commit:
        session.discard()
        raise RingBroken(f"a rank vetoed step {session.replica.step}")
    if word.digest_agreed:
        session.checkpoints.agreed()
    return word


def agree(session: Session, ring: Collective, clock: Clock) -> bytes:
    """Compare the digest of the live state with all ranks', and return it.

    Raises:
        DivergenceError: they differ.
    """
    pending = session.checkpoints.pending
    known = pending is not None and pending.step == session.replica.step
    digest = pending.digest if pending is not None and known else state_digest(session.replica)
    digests = gather_aside(ring, clock, digest)
    compared = compare([(session.replica.step, one) for one in digests])
    if compared.dissenters:
        raise _diverged(session, ring, compared.dissenters, majority=compared.majority)
    return digest


def gather_aside(ring: Collective, clock: Clock, word: bytes) -> list[bytes]:
    """An exchange that is no part of training and does not count as its communication."""
    begun_s = time.perf_counter()
    words = ring.gather(word)
    clock.aside_s += time.perf_counter() - begun_s
    return words


def _diverged(
    session: Session, ring: Collective, dissenters: Sequence[int], *, majority: bool
) -> DivergenceError:
    """Nothing that is pending will be agreed on; says who differs."""
    session.checkpoints.drop()
    others = "the others" if majority else "others, and no state has a majority"
    return DivergenceError(
        f"after step {session.replica.step}, in generation {ring.generation}, ranks"
        f" {list(dissenters)} hold another state than {others}",
        dissenters=tuple(dissenters),
        majority=majority,
    )
