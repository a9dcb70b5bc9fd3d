"""The training loop: one generation, from the state all ranks hold to their last common step.

    open the step -> batch -> forward, backward (buckets leave) -> wait -> control word -> commit

An evaluation and the agreement on a digest belong to the step that follows the state they are
about, so every step is opened once, in order, and they are a function of the committed step.  The
only way out besides an outcome is an exception: RingBroken when the generation is over, anything
else when the job is.  How the ring works is `dtd.core.ring`, what a step does `dtd.train.step`.
"""

from __future__ import annotations

import time

from dtd.core.collective import Collective, CommTiming
from dtd.core.control_word import (
    NO_DIGEST_STEP,
    ControlEntry,
    ControlWord,
    encode_entry,
    reduce_entries,
)
from dtd.errors import DivergenceError, RingBroken
from dtd.train.record import EvalRecord, Flags, Outcome, OutcomeKind, StepRecord
from dtd.train.session import Session
from dtd.train.state import state_digest
from dtd.train.step import Clock, Committed, commit, contribute


def train(session: Session, ring: Collective) -> Outcome:
    """Train until the job or the generation ends."""
    replica, plan = session.replica, session.plan
    session.loader.start(plan.requests(rank=ring.rank, world_size=ring.world_size))
    met = False
    while True:
        clock, step = Clock(), replica.step
        last = step == plan.steps_total
        ring.open_step(step, [] if last else session.memories)
        if not met or last:
            digest = _agree(session, ring, clock)
        if plan.evaluation_due(step):
            _evaluate(session, ring, clock)
        if not met or last:
            session.checkpoints.settle(step, digest)
        met = True
        if last:
            return _finish(session, ring, digest)

        begun_s = time.perf_counter()
        share = plan.share(step, rank=ring.rank, world_size=ring.world_size)
        contribute(session, ring, share, clock)
        session.gradients.wait(ring.wait)
        ring.wait(len(session.gradients.memories))
        session.prepared = True
        flags = session.requests.flags()
        word = _exchange(session, ring, flags)
        averaged_s = time.perf_counter()
        committed = commit(session)
        clock.optimizer_s = time.perf_counter() - averaged_s
        timing = ring.close_step()
        _report(session, committed, clock, timing, time.perf_counter() - begun_s)

        ends = word.stop or word.leave
        if plan.checkpoint_due(replica.step) or word.checkpoint or ends:
            _checkpoint(session, ring, waits=word.checkpoint or ends)
        kind = _ending(word, flags)
        if kind is not None and replica.step < plan.steps_total:
            return _end_early(session, ring, kind, says_why=ends)


def _exchange(session: Session, ring: Collective, flags: Flags) -> ControlWord:
    """The control word: returns if and only if the step is to be committed."""
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
    if not word.commit:
        session.discard()
        session.checkpoints.drop()
        if word.digest_agreed is not False:
            raise RingBroken(f"a rank vetoed step {session.replica.step}")
        raise DivergenceError(
            f"after step {word.digest_step} ranks {list(word.dissenters)} hold another state"
            " than the others"
        )
    if word.digest_agreed:
        session.checkpoints.agreed()
    return word


def _agree(session: Session, ring: Collective, clock: Clock) -> bytes:
    """Compare the state's digest with all ranks'."""
    pending = session.checkpoints.pending
    known = pending is not None and pending.step == session.replica.step
    digest = pending.digest if pending is not None and known else state_digest(session.replica)
    digests = _gather_aside(ring, clock, digest)
    if len(set(digests)) > 1:
        session.checkpoints.drop()
        common = max(digests, key=digests.count)
        differing = [rank for rank, other in enumerate(digests) if other != common]
        raise DivergenceError(
            f"at step {session.replica.step} of generation {ring.generation} ranks {differing}"
            " hold another state than the others"
        )
    return digest


def _evaluate(session: Session, ring: Collective, clock: Clock) -> None:
    if session.evaluator is None:
        return
    begun_s = time.perf_counter()
    replica = session.replica
    session.metrics = session.evaluator.evaluate(
        replica.model,
        rank=ring.rank,
        world_size=ring.world_size,
        gather=lambda word: _gather_aside(ring, clock, word),
    )
    session.checkpoints.evaluated(replica.step, session.metrics)
    session.reporter.evaluated(
        EvalRecord(
            step=replica.step,
            epoch=session.plan.position(replica.step - 1).epoch,
            metrics=dict(session.metrics),
            rows=session.evaluator.rows,
            eval_s=time.perf_counter() - begun_s,
        )
    )


def _gather_aside(ring: Collective, clock: Clock, word: bytes) -> list[bytes]:
    """An exchange that is no part of training and does not count as its communication."""
    begun_s = time.perf_counter()
    words = ring.gather(word)
    clock.aside_s += time.perf_counter() - begun_s
    return words


def _report(
    session: Session, committed: Committed, clock: Clock, timing: CommTiming, step_s: float
) -> None:
    session.reporter.step_committed(
        StepRecord(
            step=session.replica.step,
            epoch=committed.epoch,
            loss=committed.loss,
            lr=committed.lr,
            grad_norm=committed.grad_norm,
            rows=committed.rows,
            step_s=step_s,
            data_s=clock.data_s,
            compute_s=clock.compute_s,
            comm_s=max(0.0, timing.busy_s - clock.aside_s),
            exposed_s=max(0.0, timing.exposed_s - clock.aside_s),
            optimizer_s=clock.optimizer_s,
            skipped=committed.skipped,
        )
    )
    session.checkpoints.poll()


def _checkpoint(session: Session, ring: Collective, *, waits: bool) -> None:
    session.checkpoints.take(
        session.replica,
        generation=ring.generation,
        world_size=ring.world_size,
        writes=ring.rank == 0,
        waits=waits,
    )


def _ending(word: ControlWord, flags: Flags) -> OutcomeKind | None:
    """How the generation ends after this step; None if it goes on."""
    if word.stop:
        return "stopped"
    if word.leave:
        return "left" if flags.leave else "yielded"
    return "yielded" if word.yield_ or word.next_roster else None


def _finish(session: Session, ring: Collective, digest: bytes) -> Outcome:
    """The job is complete and its state agreed; it is saved even if an earlier writer died."""
    if ring.rank == 0 and not session.checkpoints.holds(session.replica.step):
        _checkpoint(session, ring, waits=True)
        session.checkpoints.settle(session.replica.step, digest)
    ring.close_step()
    session.checkpoints.flush()
    return _outcome(session, "finished", digest)


def _end_early(session: Session, ring: Collective, kind: OutcomeKind, *, says_why: bool) -> Outcome:
    """End the generation; before a stop or a leave the state is agreed on once more.

    A mere yield needs none: the next generation begins with it.
    """
    if not says_why:
        return _outcome(session, kind, b"")
    step = session.replica.step
    ring.open_step(step, [])
    digest = _agree(session, ring, Clock())
    session.checkpoints.settle(step, digest)
    ring.close_step()
    session.checkpoints.flush()
    return _outcome(session, kind, digest)


def _outcome(session: Session, kind: OutcomeKind, digest: bytes) -> Outcome:
    replica = session.replica
    return Outcome(
        kind=kind,
        step=replica.step,
        digest=digest.hex(),
        skipped=replica.skipped,
        rows_missing=replica.ledger.rows_missing,
        rows_repeated=replica.ledger.rows_repeated,
        metrics=dict(session.metrics),
    )
