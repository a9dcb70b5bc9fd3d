"""The training loop: one generation, from the state all ranks hold to their last common step.

    open the step -> batch -> forward, backward (buckets leave) -> wait -> control word -> commit

An evaluation and the agreement on a digest belong to the step that follows the state they are
about, so every step is opened once, in order, and they are a function of the committed step.  What
is to be saved is agreed on and published before it is evaluated: a task's metrics may fail.  The
only way out besides an outcome is an exception: RingBroken when the generation is over,
DivergenceError when replicas differ, anything else when the job is over.  How the ring works is
`dtd.core.ring.machine`, what a step does `dtd.train.step`, what is compared `dtd.train.agreement`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from dtd.core.engine.agenda import after_commit, before_step
from dtd.train.agreement import agree, exchange, gather_aside, got_on
from dtd.train.early_stop import judge
from dtd.train.record import EvalRecord, Outcome, OutcomeKind, StepRecord
from dtd.train.session import Session
from dtd.train.step import Clock, Committed, check_skips, commit, contribute
from dtd.transport.api import Collective, CommTiming


def train(
    session: Session,
    ring: Collective,
    writers: AbstractSet[int],
    voters: AbstractSet[int] | None = None,
) -> Outcome:
    """Train until the job or the generation ends.

    Args:
        session: what is trained.
        ring: joins the ranks of the generation.
        writers: ranks that save the state.
        voters: ranks that brought the state they begin with; None for all.
    """
    replica, plan = session.replica, session.plan
    session.strategy.regroup()
    requests = plan.requests(rank=ring.rank, world_size=ring.world_size)
    session.loader.start(requests, at=plan.request_number(replica.step))
    session.callbacks.rank, session.callbacks.world_size = ring.rank, ring.world_size
    met = False
    while True:
        clock, step = Clock(), replica.step
        last = session.is_last
        session.open()
        ring.open_step(step, [] if last else session.exchanges())
        due = before_step(
            met=met,
            last=last,
            evaluates=session.evaluator is not None and (plan.evaluation_due(step) or last),
            awaits_digest=session.checkpoints.deferred.awaits(step),
        )
        if due.agree:
            digest = agree(session, ring, clock, voters=None if met else voters)
            session.checkpoints.settle(step, digest)
        if due.catch_up:
            _catch_up(session, ring, writers, digest, last=last)
        if due.greet:
            session.tell("on_start", {})
        if due.evaluate:
            _evaluate(session, ring, clock)
        met = True
        if due.finish:
            return _finish(session, ring, digest)

        begun_s = time.perf_counter()
        share = plan.share(step, rank=ring.rank, world_size=ring.world_size)
        with replica.own.unchanged("loss()"):
            contribute(session, ring, share, clock)
        session.strategy.collect(ring)
        session.engine.prepare()
        flags = session.requests.flags()
        word = exchange(session, ring, flags)
        averaged_s = time.perf_counter()
        committed = commit(session)
        clock.optimizer_s += time.perf_counter() - averaged_s
        timing = ring.close_step()
        _report(session, committed, clock, timing, time.perf_counter() - begun_s)
        _check_rows(session, ring, committed)
        check_skips(session)

        after = after_commit(
            word,
            flags,
            checkpoint_due=plan.checkpoint_due(replica.step),
            digest_due=plan.digest_due(replica.step),
            last=session.is_last,
        )
        if after.checkpoint:
            _checkpoint(session, ring, writers, waits=after.waits)
        if after.digest:
            session.checkpoints.compare(replica)
        if after.ending is not None:
            return _end_early(session, ring, after.ending, agrees=after.agree)


def _evaluate(session: Session, ring: Collective, clock: Clock) -> None:
    assert session.evaluator is not None
    begun_s = time.perf_counter()
    replica = session.replica
    unchanged = replica.own.unchanged("the evaluation")
    with unchanged, _kept_buffers(session), replica.evaluated_weights():
        session.metrics = session.evaluator.evaluate(
            replica.model,
            rank=ring.rank,
            world_size=ring.world_size,
            gather=lambda word: gather_aside(ring, clock, word),
            progress=lambda: got_on(session, ring),
            begins=session.reporter.begins,
        )
    session.judged = judge(session.spec.train, replica.early_stop, session.metrics)
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
    session.tell("on_evaluation", session.metrics)


@contextlib.contextmanager
def _kept_buffers(session: Session) -> Iterator[None]:
    """Ranks evaluate different rows: what that changes in buffers is no state."""
    session.buffers.take_snapshot()
    try:
        yield
    finally:
        changed = session.buffers.put_back()
        if changed:
            session.warn(
                "buffers_put_back",
                f"the evaluation changed the model's {', '.join(changed[:3])}, which was put back:"
                " buffers change in loss() or in the optimizer's step",
            )


def _report(
    session: Session, committed: Committed, clock: Clock, timing: CommTiming, step_s: float
) -> None:
    session.reporter.progress()
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
            sent_bytes=timing.sent_bytes,
            comm_s=max(0.0, timing.busy_s - clock.aside_s),
            exposed_s=max(0.0, timing.exposed_s - clock.aside_s),
            optimizer_s=clock.optimizer_s,
            skipped=committed.skipped,
            skipped_steps=session.replica.skipped,
        )
    )
    session.checkpoints.poll()


def _check_rows(session: Session, ring: Collective, committed: Committed) -> None:
    """Tell of rows that were not the plan's; by rank 0, and by whoever saw what was wrong."""
    if not (committed.rows_missing or committed.rows_repeated):
        return
    if ring.rank == 0 or session.used.example:
        seen = f"; here {session.used.example}" if session.used.example else ""
        missing, repeated = committed.rows_missing, committed.rows_repeated
        session.warn(
            "rows_not_as_planned",
            f"in step {session.replica.step} {missing} rows of the plan were not used, and"
            f" {repeated} others were{seen}",
        )


def _checkpoint(
    session: Session, ring: Collective, writers: AbstractSet[int], *, waits: bool
) -> None:
    session.checkpoints.take(
        session.replica,
        key=session.key,
        world_size=ring.world_size,
        writes=ring.rank in writers,
        waits=waits,
    )
    session.reporter.progress()


def _catch_up(
    session: Session, ring: Collective, writers: AbstractSet[int], digest: bytes, *, last: bool
) -> None:
    """Save an agreed state that was due when its generation ended, or its writer did."""
    key, plan = session.key, session.plan
    if not (plan.checkpoint_due(key.step) or last):
        return
    if ring.rank in writers and not session.checkpoints.holds(key):
        _checkpoint(session, ring, writers, waits=last)
        session.checkpoints.settle(key.step, digest)
    else:
        session.reporter.agreed(key, digest)


def _finish(session: Session, ring: Collective, digest: bytes) -> Outcome:
    """The job is complete, its state agreed on and saved."""
    ring.close_step()
    session.checkpoints.flush()
    return _outcome(session, "finished", digest)


def _end_early(session: Session, ring: Collective, kind: OutcomeKind, *, agrees: bool) -> Outcome:
    """End the generation, after one more agreement on the state if that is due."""
    if not agrees:
        return _outcome(session, kind, b"")
    step = session.replica.step
    ring.open_step(step, [])
    digest = agree(session, ring, Clock())
    session.checkpoints.settle(step, digest)
    ring.close_step()
    session.checkpoints.flush()
    return _outcome(session, kind, digest)


def _outcome(session: Session, kind: OutcomeKind, digest: bytes) -> Outcome:
    replica = session.replica
    if kind in ("finished", "stopped"):
        session.tell("on_end", session.metrics)
    early = kind == "finished" and replica.step < session.plan.steps_total
    return Outcome(
        kind=kind,
        step=replica.step,
        digest=digest.hex(),
        skipped=replica.skipped,
        rows_missing=replica.ledger.rows_missing,
        rows_repeated=replica.ledger.rows_repeated,
        metrics=dict(session.metrics),
        ended_early=(session.ended or "it had ended before") if early else "",
    )
