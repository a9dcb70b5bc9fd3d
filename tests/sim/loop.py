"""The modelled training loop: computes for a while, reduces integers, prepares, votes, commits.

The counterpart of `dtd.train.loop`, and in the same order.
"""

from __future__ import annotations

from collections.abc import Generator

from dtd.core.control_word import (
    ControlEntry,
    ControlWord,
    Flags,
    encode_entry,
    reduce_entries,
)
from dtd.core.difference import search
from dtd.core.membership import member
from dtd.errors import DivergenceError, RingBroken, TaskError
from tests.sim import reports
from tests.sim.oracle import require
from tests.sim.phases import Phase
from tests.sim.replica import State
from tests.sim.ring_endpoint import RingEndpoint
from tests.sim.session import Session
from tests.sim.thread import Busy, Reach, Request, Routine, Wait


def train(session: Session, ring: RingEndpoint) -> Routine:
    """Train until the job or the generation ends.

    Raises:
        RingBroken: the generation is over.
        DivergenceError: ranks hold different states.
        TaskError: the job's own code failed.
    """
    state = _state(session)
    met = False
    while True:
        last = state.step == session.steps
        ring.node.open_step(state.step, () if last else session.buckets)
        if not met or last:
            yield from _digest(session, ring)
            yield from _gather(session, ring, Flags(), first=not met)
        if not met:
            _joined(session, ring)
        met = True
        if session.evaluate_every and state.step and state.step % session.evaluate_every == 0:
            yield from _evaluate(session, ring)
        if last:
            yield from _save(session, ring)
            return "finished"
        yield from _step(session, ring)
        session.prepare(ring.assign.generation)
        yield Reach(Phase.CONTROL_WORD, state.step + 1)
        flags = session.flags
        word = yield from _gather(session, ring, flags)
        yield Reach(Phase.OPTIMIZER, state.step + 1)
        yield session.busy("optimizer_s")
        state = _commit(session, ring)
        yield Reach(Phase.COMMITTED, state.step)
        yield from _report(session, ring, state)
        if state.step == session.steps:
            continue
        if word.stop or word.leave:
            ring.node.open_step(state.step, ())
            yield from _gather(session, ring, Flags())
            yield from _save(session, ring)
        ending = word.ending(flags)
        if ending is not None:
            return ending


def _state(session: Session) -> State:
    assert session.state is not None
    return session.state


def _joined(session: Session, ring: RingEndpoint) -> None:
    """All ranks hold the same state: nobody needs to fetch it any more."""
    assign = ring.assign
    session.shell.data_port.withdraw()
    session.shell.surroundings.oracle.joined(assign, session.shell.incarnation)
    running = member.TrainerRunning(generation=assign.generation, step=assign.held_step)
    session.shell.feed(running)


def _evaluate(session: Session, ring: RingEndpoint) -> Generator[Request, None, None]:
    yield Reach(Phase.EVALUATE, _state(session).step)
    session.watch.begins("evaluation", specialises=False)
    yield session.busy("evaluate_s")
    yield from _gather(session, ring, Flags())


def _step(session: Session, ring: RingEndpoint) -> Generator[Request, None, None]:
    """Forward; then gradients become ready bucket by bucket, in whatever order."""
    step = _state(session).step
    session.prepared = None
    yield Reach(Phase.FORWARD, step + 1)
    session.watch.begins("batch", len(ring.assign.roster), specialises=False)
    if step == session.shell.fails_at_step:
        raise TaskError(f"the task raised in step {step}")
    order = list(range(len(session.buckets)))
    session.shell.surroundings.rng.shuffle(order)
    piece_s = session.draw("compute_s") / (len(order) + 1)
    yield Busy(piece_s)
    yield Reach(Phase.BACKWARD, step + 1)
    for bucket in order:
        yield Busy(piece_s)
        _check(ring)
        ring.node.start(bucket)
    yield Wait(ring.node.buckets_done, ring)


def _gather(
    session: Session, ring: RingEndpoint, flags: Flags, *, first: bool = False
) -> Generator[Request, None, ControlWord]:
    """Exchange words; returns only if all ranks vote for it and hold the same state."""
    _check(ring)
    state = _state(session)
    entry = ControlEntry.saying(
        flags,
        digest_step=state.step,
        digest=bytes.fromhex(state.content),
    )
    session.compared = (ring.assign.generation, state.step, state.content)
    words = yield from _exchange(ring, encode_entry(entry))
    holders = {rank for rank, one in enumerate(ring.assign.roster) if one.holds}
    word = reduce_entries(words, voters=holders if first else None)
    if word.digest_agreed is False:
        session.prepared = session.pending = None
        differs = yield from _first_difference(ring, state)
        raise DivergenceError(
            f"after step {state.step} ranks {list(word.dissenters)} hold another state",
            dissenters=word.dissenters,
            majority=word.majority,
            step=state.step,
            entry=differs,
        )
    require(word.commit, "somebody vetoed", ring.assign)
    _agreed(session, state)
    return word


def _exchange(ring: RingEndpoint, word: bytes) -> Generator[Request, None, list[bytes]]:
    ring.node.offer(word)
    yield Wait(lambda: ring.node.words() is not None, ring)
    words = ring.node.words()
    assert words is not None
    return words


def _first_difference(ring: RingEndpoint, state: State) -> Generator[Request, None, str]:
    """All ranks search together; nothing is found if the ring breaks meanwhile."""
    looking = search(state.hashes())
    try:
        word = next(looking)
        while True:
            _check(ring)
            word = looking.send((yield from _exchange(ring, word)))
    except StopIteration as found:
        return f"entry {found.value}"
    except RingBroken:
        return ""


def _check(ring: RingEndpoint) -> None:
    if ring.why_broken:
        raise RingBroken(ring.why_broken, suspect=ring.suspect, evidence=ring.evidence)


def _agreed(session: Session, state: State) -> None:
    """A checkpoint is valid once all ranks have the same digest."""
    session.agreed = state
    pending, session.pending = session.pending, None
    last = state.step == session.steps
    if last or (pending is not None and pending.key == state.key):
        session.shell.tell(reports.agreed(state))
    if pending is not None and pending.key == state.key:
        session.save_soon(pending)


def _save(session: Session, ring: RingEndpoint) -> Generator[Request, None, None]:
    """The writers save the state before they say that they are done."""
    if ring.assign.rank < session.copies:
        yield session.busy("checkpoint_s")
        assert session.agreed is not None
        session.save(session.agreed)


def _commit(session: Session, ring: RingEndpoint) -> State:
    state = session.commit()
    session.watch.committed()
    session.shell.surroundings.oracle.committed(ring.assign, state)
    return state


def _digest(session: Session, ring: RingEndpoint) -> Generator[Request, None, None]:
    """A generation that has ended needs none."""
    for piece in session.digest():
        yield piece
        _check(ring)


def _report(session: Session, ring: RingEndpoint, state: State) -> Generator[Request, None, None]:
    assign, every = ring.assign, session.checkpoint_every
    if assign.rank == 0:
        session.shell.tell(reports.progress(state, rows=len(assign.roster)))
    if every and state.step % every == 0:
        yield from session.digest()
    if assign.rank < session.copies and every and state.step % every == 0:
        session.pending = state if state.step < session.steps else None
