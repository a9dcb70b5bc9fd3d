"""What all ranks must agree on: whether a step is committed, and that their states are equal.

Replicas are equal by construction, so a digest that differs is a broken machine or a task that
does not compute the same thing twice.  Digests travel in the control word of the step after the
state that they are about, and by themselves where a generation begins or ends.  What is compared
is decided by the step number alone, so every rank compares the same.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from dtd.core.engine.control_word import Comparison, ControlWord, Flags, compare
from dtd.core.engine.step_protocol import Ruling
from dtd.errors import DivergenceError, RingBroken
from dtd.train.session import Session
from dtd.train.state.difference import first_difference
from dtd.train.state.tensors import state_digest
from dtd.train.step import Clock
from dtd.transport.api import Collective


def exchange(session: Session, ring: Collective, flags: Flags) -> ControlWord:
    """The control word: returns if and only if the step is to be committed.

    Raises:
        DivergenceError: the states before this step differ; nothing of it was applied.
    """
    engine = session.engine
    digest_step, digest = session.checkpoints.deferred.said
    entry = engine.entry(flags, digest_step=digest_step, digest=digest)
    if digest:
        session.compared = (ring.generation, digest_step, digest)
    verdict = engine.judge(ring.gather(entry))
    word = verdict.word
    if verdict.ruling is not Ruling.COMMIT:
        session.discard()
    if verdict.ruling is Ruling.DIVERGED:
        compared = Comparison(dissenters=word.dissenters, majority=word.majority)
        raise _diverged(session, ring, compared)
    if verdict.ruling is Ruling.REDO:
        raise RingBroken(f"a rank vetoed step {session.replica.step}")
    if word.digest_agreed:
        session.checkpoints.agreed()
    return word


def agree(
    session: Session, ring: Collective, clock: Clock, *, voters: Collection[int] | None = None
) -> bytes:
    """Compare the digest of the live state with all ranks', and return it.

    Args:
        session: holds the state.
        ring: joins the ranks.
        clock: of the step that is open.
        voters: ranks that have their state from nobody else in this generation; None for all.

    Raises:
        DivergenceError: they differ.
    """
    digest = session.checkpoints.deferred.known(session.replica.step)
    if digest is None:
        digest = state_digest(session.replica, lambda: got_on(session, ring))
    session.compared = (ring.generation, session.replica.step, digest)
    digests = gather_aside(ring, clock, digest)
    compared = compare([(session.replica.step, one) for one in digests], voters=voters)
    if compared.dissenters:
        raise _diverged(session, ring, compared)
    return digest


def got_on(session: Session, ring: Collective) -> None:
    """A generation that has ended needs no digest, however long that would still take."""
    session.reporter.progress()
    ring.check()


def gather_aside(ring: Collective, clock: Clock, word: bytes) -> list[bytes]:
    """An exchange that is no part of training and does not count as its communication."""
    begun_s = time.perf_counter()
    words = ring.gather(word)
    clock.aside_s += time.perf_counter() - begun_s
    return words


def _diverged(session: Session, ring: Collective, compared: Comparison) -> DivergenceError:
    """Nothing that is pending will be agreed on; says who differs, and in what first."""
    session.checkpoints.drop()
    step = session.replica.step
    found = first_difference(session.replica, ring.gather, session.reporter.progress)
    others = "the others" if compared.majority else "others, and no state has a majority"
    first = f"; what differs first is {found.meaning}" if found.entry else ""
    return DivergenceError(
        f"after step {step}, in generation {ring.generation}, ranks {list(compared.dissenters)}"
        f" hold another state than {others}{first}",
        dissenters=compared.dissenters,
        majority=compared.majority,
        step=step,
        entry=found.entry,
    )
