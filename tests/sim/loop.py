"""The modelled training loop: computes for a while, reduces integers, prepares, votes, commits.

The counterpart of `dtd.train.loop`: both drive `dtd.core.engine`.
"""

from __future__ import annotations

from collections.abc import Generator

from dtd.core.engine.agenda import after_commit, before_step
from dtd.core.engine.control_word import Comparison, ControlWord, Flags, compare, decode_entry
from dtd.core.engine.difference import search
from dtd.core.engine.step_protocol import Ruling
from dtd.core.membership import member
from dtd.errors import DivergenceError, RingBroken, TaskError
from tests.sim import reports
from tests.sim.oracle import require
from tests.sim.phases import Phase
from tests.sim.replica import State
from tests.sim.ring_endpoint import RingEndpoint
from tests.sim.rows import share
from tests.sim.session import Session
from tests.sim.thread import Busy, Reach, Request, Routine, Wait


def train(session: Session, ring: RingEndpoint) -> Routine:
    """Train until the job or the generation ends.

    Raises:
        RingBroken: the generation is over.
        DivergenceError: ranks hold different states.
        TaskError: the job's own code failed.
    """
    session.discard()
    met = False
    while True:
        state = session.live
        last = state.step == session.steps
        due = before_step(
            met=met,
            last=last,
            evaluates=session.evaluation_due(state.step),
            awaits_digest=session.deferred.awaits(state.step),
        )
        _open(session, ring)
        if due.agree:
            yield from _agree(session, ring, first=not met)
        if due.greet:
            _joined(session, ring)
        met = True
        if due.catch_up:
            yield from _catch_up(session, ring, last=last)
        if due.evaluate:
            yield from _evaluate(session, ring)
        if due.finish:
            return "finished"
        yield from _step(session, ring)
        session.prepare(ring.assign.generation, ring.node.total())
        yield Reach(Phase.CONTROL_WORD, state.step + 1)
        flags = session.flags
        word = yield from _vote(session, ring, flags)
        yield Reach(Phase.OPTIMIZER, state.step + 1)
        session.engine.apply()
        yield session.busy("optimizer_s")
        state = _commit(session, ring)
        yield Reach(Phase.COMMITTED, state.step)
        after = after_commit(
            word,
            flags,
            checkpoint_due=session.checkpoint_due(state.step),
            digest_due=False,
            last=state.step == session.steps,
        )
        yield from _report(session, ring, state, digests=after.checkpoint)
        if after.ending is not None:
            if after.agree:
                ring.node.open_step(state.step, ())
                yield from _agree(session, ring)
                yield from _save(session, ring)
            return after.ending


def _open(session: Session, ring: RingEndpoint) -> None:
    session.engine.open()
    step, assign = session.live.step, ring.assign
    if step == session.steps:
        ring.node.open_step(step, ())
        return
    world_size = len(assign.roster)
    mine = share(session.data, step, rank=assign.rank, world_size=world_size)
    ring.node.open_step(step, session.buckets, share=mine)


def _agree(
    session: Session, ring: RingEndpoint, *, first: bool = False
) -> Generator[Request, None, None]:
    """Compare what all ranks hold now; at first only who has not copied it has a say."""
    state, holders = session.live, None
    if not session.deferred.awaits(state.step):
        yield from _digest(session, ring)
    if first:
        holders = {rank for rank, one in enumerate(ring.assign.roster) if one.holds}
    _check(ring)
    session.compared = (ring.assign.generation, state.step, state.content)
    words = yield from _exchange(ring, bytes.fromhex(state.content))
    compared = compare([(state.step, word) for word in words], voters=holders)
    if compared.dissenters:
        yield from _diverge(session, ring, state.step, compared, words, holders)
    _agreed(session, state)


def _vote(
    session: Session, ring: RingEndpoint, flags: Flags
) -> Generator[Request, None, ControlWord]:
    """Exchange control words; returns only if the step is to be committed."""
    _check(ring)
    digest_step, digest = session.deferred.said
    entry = session.engine.entry(flags, digest_step=digest_step, digest=digest)
    if session.pending is not None:
        session.compared = (ring.assign.generation, digest_step, digest.hex())
    words = yield from _exchange(ring, entry)
    verdict = session.engine.judge(words)
    word = verdict.word
    if verdict.ruling is Ruling.DIVERGED:
        compared = Comparison(dissenters=word.dissenters, majority=word.majority)
        digests = [decode_entry(one).digest for one in words]
        yield from _diverge(session, ring, digest_step, compared, digests, None)
    require(verdict.ruling is Ruling.COMMIT, "somebody vetoed", ring.assign)
    if session.pending is not None:
        _agreed(session, session.pending)
    return word


def _diverge(
    session: Session,
    ring: RingEndpoint,
    step: int,
    compared: Comparison,
    digests: list[bytes],
    voters: set[int] | None,
) -> Generator[Request, None, None]:
    """Find what differs first, and give up the generation.

    Raises:
        DivergenceError: always.
    """
    session.discard()
    session.drop()
    session.shell.surroundings.oracle.differ(digests, voters, majority=compared.majority)
    differs = yield from _first_difference(ring, session.live)
    raise DivergenceError(
        f"after step {step} ranks {list(compared.dissenters)} hold another state",
        dissenters=compared.dissenters,
        majority=compared.majority,
        step=step,
        entry=differs,
    )


def _catch_up(
    session: Session, ring: RingEndpoint, *, last: bool
) -> Generator[Request, None, None]:
    """Save an agreed state that was due when its generation ended, or its writer did."""
    state = session.live
    if not (last or session.checkpoint_due(state.step)):
        return
    session.shell.tell(reports.agreed(state))
    if last:
        yield from _save(session, ring)
    elif session.writes and session.shell.disk.find(state.job, state.key) is None:
        session.save_soon(state)


def _joined(session: Session, ring: RingEndpoint) -> None:
    """All ranks hold the same state: nobody needs to fetch it any more."""
    assign = ring.assign
    session.shell.data_port.withdraw()
    session.shell.surroundings.oracle.joined(assign, session.shell.incarnation)
    running = member.TrainerRunning(generation=assign.generation, step=assign.held_step)
    session.shell.feed(running)


def _evaluate(session: Session, ring: RingEndpoint) -> Generator[Request, None, None]:
    yield Reach(Phase.EVALUATE, session.live.step)
    session.watch.begins("evaluation", specialises=False)
    yield session.busy("evaluate_s")
    _check(ring)
    yield from _exchange(ring, b"metrics")


def _step(session: Session, ring: RingEndpoint) -> Generator[Request, None, None]:
    """Forward; then gradients become ready bucket by bucket, in whatever order."""
    step = session.live.step
    session.engine.begin(ring.assign.generation)
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
    session.shell.surroundings.oracle.agreed(state)
    session.agreed = state
    pending = session.pending
    if pending is None or not session.deferred.matches(state.step, bytes.fromhex(state.content)):
        return
    session.deferred.settled()
    session.pending = None
    session.shell.tell(reports.agreed(pending))
    if session.writes:
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


def _report(
    session: Session, ring: RingEndpoint, state: State, *, digests: bool
) -> Generator[Request, None, None]:
    assign = ring.assign
    if assign.rank == 0:
        session.shell.tell(reports.progress(state, rows=len(assign.roster)))
    if digests and state.step < session.steps:
        yield from session.digest()
        session.defer(state)
