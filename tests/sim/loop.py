"""The modelled training loop: computes for a while, reduces integers, prepares, votes, commits.

The counterpart of `dtd.train.loop`: both drive `dtd.engine`.
"""

from __future__ import annotations

from collections.abc import Generator

from dtd.engine.agenda import after_commit, before_step
from dtd.engine.control_word import Comparison, ControlWord, Flags, compare, decode_entry
from dtd.engine.digests import ShardDigests, combined, search
from dtd.engine.shares import decide, pack_cost, unpack_cost
from dtd.errors import DivergenceError, RingBroken, TaskError
from dtd.strategy.codec.api import ResidualHandoff
from dtd.wire import messages as m
from tests.sim import regroup, reports, shards
from tests.sim.phases import Phase
from tests.sim.replica import State
from tests.sim.residuals import add, given, taken, value
from tests.sim.ring_endpoint import RingEndpoint
from tests.sim.rows import LEAST_ROWS, share
from tests.sim.session import JobSession
from tests.sim.thread import Busy, Reach, Request, Routine, Wait


def train(session: JobSession, ring: RingEndpoint) -> Routine:
    """Train until the job or the generation ends.

    Raises:
        RingBroken: the generation is over.
        DivergenceError: ranks hold different states.
        TaskError: the job's own code failed.
    """
    session.discard()
    session.costs = ()
    met, exchange_number = False, ring.assign.held_step
    while True:
        state = session.live
        last = state.step == session.steps
        due = before_step(
            met=met,
            last=last,
            evaluates=session.evaluation_due(state.step),
            awaits_digest=session.deferred.awaits(state.step),
            divides=session.divides(),
        )
        _open(session, ring, exchange_number)
        exchange_number += 1
        if not met and session.mirrors is not None:
            yield from _regroup(session, ring)
        if due.agree:
            yield from _agree(session, ring, first=not met)
        if not met and session.mirrors is not None:
            regroup.drop(session, ring)
        if due.announce_start:
            _joined(session, ring)
        met = True
        if due.catch_up:
            yield from _catch_up(session, ring, last=last)
        if due.divide:
            yield from _divide(session, ring)
        if due.evaluate:
            yield from _evaluate(session, ring)
        if due.finish:
            return "finished"
        yield from _step(session, ring)
        session.prepare(ring.assign.generation, ring.node.total())
        ends_at = session.round.stop
        yield Reach(Phase.CONTROL_WORD, ends_at)
        flags = session.flags
        word = yield from _vote(session, ring, flags)
        yield Reach(Phase.OPTIMIZER, ends_at)
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
                hands_on = (
                    session.hands_on and not word.flags.stop
                )  # some ranks leave, others continue
                leaves = (after.ending == "left") if hands_on else None
                yield from _end_early(session, ring, exchange_number, leaves)
            return after.ending


def _open(session: JobSession, ring: RingEndpoint, exchange_number: int) -> None:
    session.engine.open()
    if session.live.step == session.steps:
        ring.node.open_step(exchange_number, ())
        return
    ring.ahead = session.round.stop - exchange_number
    ring.node.open_step(exchange_number, session.buckets)


def _trainers(ring: RingEndpoint) -> int:
    return sum(not member.serves for member in ring.assign.roster)


def _share(session: JobSession, ring: RingEndpoint) -> int:
    """The sum of this rank's rows in the open round."""
    rank, trainers = ring.assign.rank, _trainers(ring)
    if rank >= trainers:
        return 0
    return sum(
        share(session.data, one, rank=rank, world_size=trainers, costs=session.costs)
        for one in session.round
    )


def _divide(session: JobSession, ring: RingEndpoint) -> Generator[Request, None, None]:
    """Tell all ranks how fast this one is, and divide the next rows by what all have told."""
    words = yield from _exchange(ring, pack_cost(session.cost))
    told = [unpack_cost(one) for one in words][: _trainers(ring)]
    decision = decide(session.costs, told, rows=session.data.batch, least=LEAST_ROWS)
    session.costs = decision.costs


def _end_early(
    session: JobSession, ring: RingEndpoint, exchange_number: int, leaves: bool | None
) -> Generator[Request, None, None]:
    """Agree once more; with `leaves` not None, leaving ranks also hand on their residuals."""
    residuals = session.shell.surroundings.oracle.residuals
    handoff, shares = None, []
    if leaves is not None:
        handoff = ResidualHandoff([session.residual], leaves=leaves)
        shares = given(handoff)
        residuals.gives(ring.assign, leaves=leaves)
    ring.node.open_step(exchange_number, [1] * len(shares), shares)
    for bucket in range(len(shares)):
        ring.node.start(bucket)
    yield from _agree(session, ring)
    if handoff is not None:
        yield Wait(ring.node.buckets_done, ring)
        taken(handoff, ring.node.totals())
        residuals.handed_on(ring.assign, value(session.residual))
    yield from _save(session, ring)


def _regroup(session: JobSession, ring: RingEndpoint) -> Generator[Request, None, None]:
    """Obtain this rank's shards; ends the generation if their holders differ."""
    digests = yield from regroup.gather(session, ring, _exchange)
    if digests:
        yield from _judge(session, ring, digests, _holders(ring))


def _holders(ring: RingEndpoint) -> set[int]:
    """The ranks that did not copy the state from others in this generation."""
    return {rank for rank, one in enumerate(ring.assign.roster) if one.holds}


def _judge(
    session: JobSession, ring: RingEndpoint, digests: list[bytes], voters: set[int] | None
) -> Generator[Request, None, None]:
    """Compare the ranks' digests of the current state."""
    step = session.live.step
    compared = compare([(step, one) for one in digests], voters=voters)
    if compared.dissenters:
        yield from _diverge(session, ring, step, compared, digests, voters)


def _agree(
    session: JobSession, ring: RingEndpoint, *, first: bool = False
) -> Generator[Request, None, None]:
    """Compare all ranks' current states; with `first`, ranks that copied theirs have no vote."""
    state = session.live
    if not session.deferred.awaits(state.step):
        yield from _digest(session, ring)
    _check(ring)
    if session.mirrors is None:
        digests = yield from _exchange(ring, bytes.fromhex(state.content))
    else:
        hashed = regroup.hashed(session, ring, state)
        digests = yield from _tallied(session, ring, hashed)
        session.deferred.combine(state.step, hashed, digests[ring.assign.rank])
    yield from _judge(session, ring, digests, _holders(ring) if first else None)
    _agreed(session, ring, state)
    session.drop()  # what was pending beside it: another rank may have agreed on it already


def _tallied(
    session: JobSession, ring: RingEndpoint, hashed: ShardDigests
) -> Generator[Request, None, list[bytes]]:
    """The digests of a sharded state on all ranks, from each one's hashes."""
    words = yield from _exchange(ring, hashed.encode())
    tally = combined(words, regroup.division_of(session, ring).segments)
    return shards.said(tally, [ShardDigests.decode(one).common.hex() for one in words])


def _vote(
    session: JobSession, ring: RingEndpoint, flags: Flags
) -> Generator[Request, None, ControlWord]:
    """Exchange control words; returns only if the step is to be committed."""
    _check(ring)
    if session.deferred.uncombined is not None:
        of_step, hashed = session.deferred.uncombined
        combined_digests = yield from _tallied(session, ring, hashed)
        session.deferred.combine(of_step, hashed, combined_digests[ring.assign.rank])
    digest_step, digest = session.deferred.said
    entry = session.engine.entry(flags, digest_step=digest_step, digest=digest)
    words = yield from _exchange(ring, entry)
    word = session.engine.judge(words)
    if word.compared is not None and word.compared.dissenters:
        digests = [decode_entry(one).digest for one in words]
        yield from _diverge(session, ring, digest_step, word.compared, digests, None)
    if session.pending is not None:
        _agreed(session, ring, session.pending)
    return word


def _diverge(
    session: JobSession,
    ring: RingEndpoint,
    step: int,
    compared: Comparison,
    digests: list[bytes],
    voters: set[int] | None,
) -> Generator[Request, None, None]:
    """Find the first difference, and end the generation.

    Raises:
        DivergenceError: always.
    """
    session.discard()
    session.drop()
    session.shell.surroundings.oracle.agreements.differ(
        ring.assign, step, digests, voters, majority=compared.majority
    )
    differs = yield from _first_difference(ring, session.live)
    raise DivergenceError(
        f"after step {step} ranks {list(compared.dissenters)} hold another state",
        dissenters=compared.dissenters,
        majority=compared.majority,
        step=step,
        entry=differs,
    )


def _catch_up(
    session: JobSession, ring: RingEndpoint, *, last: bool
) -> Generator[Request, None, None]:
    """Save an agreed state that was due when its generation ended, or its writer did."""
    state = session.live
    if not (last or session.checkpoint_due(state.step)):
        return
    assert session.agreed is not None, "a state is saved that was not agreed on"
    session.shell.tell(reports.agreed(session.agreed))  # bits of the live one may have flipped
    if last:
        yield from _save(session, ring)
    elif session.writes and session.shell.disk.find(state.job, state.key) is None:
        session.save_soon(state)


def _joined(session: JobSession, ring: RingEndpoint) -> None:
    """Stop serving the state: all ranks hold it."""
    assign = ring.assign
    session.shell.data_port.withdraw()
    session.shell.surroundings.oracle.joined(assign, session.shell.incarnation)
    session.shell.feed(
        m.Running(job=assign.job, generation=assign.generation, step=assign.held_step)
    )


def _evaluate(session: JobSession, ring: RingEndpoint) -> Generator[Request, None, None]:
    yield Reach(Phase.EVALUATE, session.live.step)
    session.watch.begins("evaluation", specialises=False)
    yield session.busy("evaluate_s")
    _check(ring)
    yield from _exchange(ring, b"metrics")


def _step(session: JobSession, ring: RingEndpoint) -> Generator[Request, None, None]:
    """Compute the forward pass; then buckets of gradients become ready in arbitrary order."""
    steps = session.round
    session.engine.begin(ring.assign.generation, steps=len(steps))
    ring.node.contribute([_share(session, ring)] * len(session.buckets))
    agreements = session.shell.surroundings.oracle.agreements
    agreements.divided(ring.assign, steps.start, session.costs)
    yield Reach(Phase.FORWARD, steps.stop)
    for step in steps:
        session.watch.begins("batch", len(ring.assign.roster), specialises=False)
        if step == session.shell.fails_at_step:
            raise TaskError(f"the task raised in step {step}")
        unwelcome = session.shell.surroundings.unwelcome
        if unwelcome in {one.name for one in ring.assign.roster} - {session.shell.name}:
            raise TaskError(f"there are too few rows beside {unwelcome}")
        if step + 1 < steps.stop:
            yield session.busy("compute_s")
            _check(ring)
    _keep_back(session, ring)
    order = list(range(len(session.buckets)))
    session.shell.surroundings.rng.shuffle(order)
    piece_s = session.draw("compute_s") / (len(order) + 1)
    yield Busy(piece_s)
    yield Reach(Phase.BACKWARD, steps.stop)
    for bucket in order:
        yield Busy(piece_s)
        _check(ring)
        ring.node.start(bucket)
    yield Wait(ring.node.buckets_done, ring)


def _keep_back(session: JobSession, ring: RingEndpoint) -> None:
    """Prepare the next residual: the part of its share that this rank does not send."""
    residuals = session.shell.surroundings.oracle.residuals
    residuals.computed(session.shell.name, session.job, value(session.residual))
    add(session.residual, _share(session, ring))


def _exchange(ring: RingEndpoint, word: bytes) -> Generator[Request, None, list[bytes]]:
    ring.node.offer(word)
    yield Wait(lambda: ring.node.words() is not None, ring)
    words = ring.node.words()
    assert words is not None
    return words


def _first_difference(ring: RingEndpoint, state: State) -> Generator[Request, None, str]:
    """Search for a difference with all ranks; nothing is found if the ring breaks meanwhile."""
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


def _agreed(session: JobSession, ring: RingEndpoint, state: State) -> None:
    """A checkpoint is valid once all ranks have the same digest."""
    session.shell.surroundings.oracle.agreements.agreed(ring.assign, state)
    if session.mirrors is not None:
        regroup.agreed(session, ring, state)
    session.agreed = state
    pending = session.pending
    if pending is None or not session.deferred.matches(state.step, bytes.fromhex(state.content)):
        return
    session.deferred.settled()
    session.pending = None
    session.shell.tell(reports.agreed(pending))
    if session.writes:
        session.save_soon(pending)


def _save(session: JobSession, ring: RingEndpoint) -> Generator[Request, None, None]:
    """Save the state on ranks that write, before they report that they have finished."""
    if session.writes:
        yield session.busy("checkpoint_s")
        assert session.agreed is not None
        session.save(session.agreed)


def _commit(session: JobSession, ring: RingEndpoint) -> State:
    state = session.commit()
    session.watch.committed()
    session.shell.surroundings.oracle.committed(ring.assign, state)
    return state


def _digest(session: JobSession, ring: RingEndpoint) -> Generator[Request, None, None]:
    """Compute the digest, unless the generation ends meanwhile."""
    for piece in session.digest():
        yield piece
        _check(ring)


def _report(
    session: JobSession, ring: RingEndpoint, state: State, *, digests: bool
) -> Generator[Request, None, None]:
    assign = ring.assign
    if assign.rank == 0:
        session.shell.tell(reports.progress(state, rows=len(assign.roster)))
    if digests and state.step < session.steps:
        yield from session.digest()
        sharded = session.mirrors is not None
        session.defer(state, regroup.division_of(session, ring).segments if sharded else 0)
