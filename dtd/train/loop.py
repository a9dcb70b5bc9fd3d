"""The training loop: one generation, from the state all ranks hold to their last common step.

    open the step -> batch -> forward, backward (buckets leave) -> wait -> control word -> commit

The evaluation of a state, and the agreement on its digest, belong to the step that follows this
state.  So every step is opened once, in order, and whether these are due depends on the committed
step alone.  The ring numbers the opened steps consecutively, beginning with the first step of the
generation; if a round of local steps is opened as a whole (`dtd.engine.rounds`), the job's
step count advances faster.  A checkpoint is agreed on and published before its state is evaluated,
because a task's metrics may fail.  The loop returns an outcome or raises: RingBroken if the
generation is over, DivergenceError if replicas differ, any other exception if the job is over.  See
`dtd.exchange.schedule.machine` for the ring, `dtd.train.step` for the parts of a step and
`dtd.train.agreement` for what is compared.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import partial

from dtd.engine.agenda import AfterStep, BeforeStep, after_commit, before_step
from dtd.exchange.api import Collective
from dtd.observe.profile.spans import COLLECT, COMMIT, COMPUTE, VOTE
from dtd.shown import counted
from dtd.strategy.codec.api import World
from dtd.strategy.codec.local_state import ResidualHandoff
from dtd.train.agreement import agree, compare_moving, exchange, record_progress, timed_gather
from dtd.train.evaluation import judge
from dtd.train.malloc_tuning import mapped_blocks, return_freed_memory
from dtd.train.record import EvalRecord, Outcome, OutcomeKind, StepRecord
from dtd.train.session import JobSession
from dtd.train.step import check_skips, commit, contribute


def train(
    session: JobSession,
    ring: Collective,
    writers: AbstractSet[int],
    voters: AbstractSet[int] | None = None,
    servers: int = 0,
) -> Outcome:
    """Train until the job or the generation ends.

    Args:
        session: the job's session.
        ring: connects the ranks of the generation.
        writers: ranks that save the state.
        voters: ranks that already held the initial state; None for all.
        servers: how many of the last ranks are parameter servers.
    """
    try:
        outcome = _train(session, ring, writers, voters, servers)
    except BaseException:
        session.profiler.end_generation(ring, waits=False)
        raise
    session.profiler.end_generation(ring, waits=outcome.kind in ("finished", "stopped"))
    return outcome


def _train(
    session: JobSession,
    ring: Collective,
    writers: AbstractSet[int],
    voters: AbstractSet[int] | None,
    servers: int,
) -> Outcome:
    met, exchange_number = False, _begin(session, ring, voters, servers)
    while True:
        session.profiler.advance(ring, session.replica.step)
        record, last = StepRecord(), session.is_last
        session.open()
        due = _due(session, met=met, last=last)
        strategy = session.strategy
        strategy.wants_whole(_shows_model(session, due))
        ring.open_step(exchange_number, strategy.refreshes() if last else session.exchanges())
        exchange_number += 1
        if due.agree:
            digest = _agree(session, ring, record, None if met else voters)
        strategy.refresh(ring)  # overwrites what is not held any more: only after the agreement
        if due.announce_start or due.evaluate or due.finish:
            with mapped_blocks():  # a whole model is needed for a moment
                strategy.refreshed()
        if due.catch_up:
            _catch_up(session, ring, writers, digest, last=last)
        if due.announce_start:
            session.tell("on_start", {})
        if due.evaluate:
            _evaluate(session, ring, record)
        met = True
        if due.finish:
            return _finish(session, ring, digest)
        after = _step(session, ring, record, writers)
        if after.ending is not None:
            return _end_early(session, ring, after.ending, exchange_number, agrees=after.agree)


def _begin(
    session: JobSession, ring: Collective, voters: AbstractSet[int] | None, servers: int
) -> int:
    """Prepare this rank for the generation; returns the number of the next exchange."""
    replica, plan = session.replica, session.plan
    session.servers = servers
    session.strategy.regroup(
        World(rank=ring.rank, size=ring.world_size, servers=servers, first_step=replica.step)
    )
    requests = plan.requests(rank=ring.rank, world_size=ring.world_size - servers)
    session.memory.regroup(ring.world_size)
    session.data.loader.start(requests, at=plan.request_number(replica.step))
    session.callbacks.rank, session.callbacks.world_size = ring.rank, ring.world_size
    compare = partial(compare_moving, session, ring, voters)
    with mapped_blocks():
        return session.strategy.redistribute(ring, replica.step, compare)


def _due(session: JobSession, *, met: bool, last: bool) -> BeforeStep:
    """Return the actions that are due before the step."""
    step, plan = session.replica.step, session.plan
    evaluates = session.data.evaluator is not None
    return before_step(
        met=met,
        last=last,
        evaluates=evaluates and (plan.evaluation_due(step) or last),
        awaits_digest=session.checkpoints.deferred.awaits(step),
    )


def _agree(
    session: JobSession, ring: Collective, record: StepRecord, voters: AbstractSet[int] | None
) -> bytes:
    """Agree with all ranks on the state; returns its digest."""
    digest = agree(session, ring, record, voters=voters)
    ring.agreed()
    session.checkpoints.settle(session.replica.step, digest)
    session.strategy.keep_redistributed()
    if session.replica.shards is not None:
        return_freed_memory()
    return digest


def _step(
    session: JobSession, ring: Collective, record: StepRecord, writers: AbstractSet[int]
) -> AfterStep:
    """Compute a step, vote on it and commit it; do what follows, but for the generation's end."""
    replica, marks = session.replica, session.profiler.marks
    begun_s = time.perf_counter()
    marks.begin_step()
    with replica.own.unchanged("loss()"), session.memory.step():
        contribute(session, ring, record)
    marks.ended(COMPUTE)
    session.strategy.collect(ring)
    marks.ended(COLLECT)
    session.engine.prepare()
    flags = session.requests.flags()
    word = exchange(session, ring, flags)
    averaged_s = time.perf_counter()
    marks.ended(VOTE)
    commit(session, record)
    marks.ended(COMMIT)
    marks.end_step(replica.step)
    record.optimizer_s += time.perf_counter() - averaged_s
    timing = ring.close_step()
    record.step_s = time.perf_counter() - begun_s
    record.sent_bytes = timing.sent_bytes
    record.comm_s = max(0.0, timing.busy_s - record.aside_s)
    record.exposed_s = max(0.0, timing.exposed_s - record.aside_s)
    _report(session, record)
    check_skips(session)
    after = after_commit(
        word,
        flags,
        checkpoint_due=session.plan.checkpoint_due(replica.step),
        digest_due=session.plan.digest_due(replica.step),
        last=session.is_last,
    )
    if after.checkpoint:
        _checkpoint(session, ring, writers, waits=after.waits)
    if after.digest:
        session.checkpoints.compare(replica)
    return after


def _shows_model(session: JobSession, due: BeforeStep) -> bool:
    """Whether something looks at the whole model before the step; equal on all ranks."""
    told = session.callbacks.defines
    return (
        due.evaluate or (due.announce_start and told("on_start")) or (due.finish and told("on_end"))
    )


def commit_at_take_over(session: JobSession) -> None:
    """Commit and report the prepared step of a generation that has ended; its times are 0."""
    record = StepRecord()
    commit(session, record)
    _report(session, record)


def _evaluate(session: JobSession, ring: Collective, record: StepRecord) -> None:
    assert session.data.evaluator is not None
    begun_s = time.perf_counter()
    replica = session.replica
    unchanged = replica.own.unchanged("the evaluation")
    with unchanged, _kept_buffers(session), replica.evaluated_weights():
        session.metrics = session.data.evaluator.evaluate(
            replica.model,
            rank=ring.rank,
            world_size=ring.world_size - session.servers,
            gather=lambda word: timed_gather(ring, record, word),
            progress=lambda: record_progress(session, ring),
            begins=session.reporter.begins,
        )
    session.judged = judge(session.spec.train, replica.early_stop, session.metrics)
    session.checkpoints.evaluated(replica.step, session.metrics)
    session.reporter.evaluated(
        EvalRecord(
            step=replica.step,
            epoch=session.plan.position(replica.step - 1).epoch,
            metrics=dict(session.metrics),
            rows=session.data.evaluator.rows,
            eval_s=time.perf_counter() - begun_s,
        )
    )
    session.tell("on_evaluation", session.metrics)


@contextlib.contextmanager
def _kept_buffers(session: JobSession) -> Iterator[None]:
    """Restore the buffers afterwards: ranks evaluate different rows, so they would differ."""
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


def _report(session: JobSession, record: StepRecord) -> None:
    """Report a committed step, and rows that differ from its plan."""
    session.reporter.progress()
    session.reporter.step_committed(record)
    session.checkpoints.poll()
    differ = record.rows_missing or record.rows_repeated
    if differ and (record.rank == 0 or session.used.example):
        seen = f"; here {session.used.example}" if session.used.example else ""
        session.warn(
            "rows_not_as_planned",
            f"in step {record.step} {record.rows_missing} rows of the plan were not used, and"
            f" {record.rows_repeated} others were{seen}",
        )


def _checkpoint(
    session: JobSession,
    ring: Collective,
    writers: AbstractSet[int],
    *,
    waits: bool,
    agreed: bytes = b"",
) -> None:
    session.checkpoints.take(
        session.replica,
        key=session.key,
        world_size=ring.world_size,
        writes=ring.rank in writers,
        waits=waits,
        agreed=agreed,
    )
    session.memory.copied(session.checkpoints.snapshot_bytes)
    session.reporter.progress()


def _catch_up(
    session: JobSession, ring: Collective, writers: AbstractSet[int], digest: bytes, *, last: bool
) -> None:
    """Save an agreed state whose checkpoint was due when its generation or its writer was lost."""
    key, plan = session.key, session.plan
    if not (plan.checkpoint_due(key.step) or last):
        return
    part = session.replica.held_part
    if ring.rank in writers and not session.checkpoints.holds(key, ring.world_size, part):
        _checkpoint(session, ring, writers, waits=last, agreed=digest)
        session.checkpoints.settle(key.step, digest)
    else:
        session.reporter.agreed(key, digest)


def _finish(session: JobSession, ring: Collective, digest: bytes) -> Outcome:
    """The job is complete: its state is agreed on and saved."""
    ring.close_step()
    session.checkpoints.flush()
    return _outcome(session, "finished", digest)


def _end_early(
    session: JobSession,
    ring: Collective,
    kind: OutcomeKind,
    exchange_number: int,
    *,
    agrees: bool,
) -> Outcome:
    """End the generation, after one more agreement on the state if it is due.

    Ranks that leave transfer their residuals to those that stay, unless the job stops.
    """
    if not agrees:
        return _outcome(session, kind, b"")
    step = session.replica.step
    residuals = [] if kind == "stopped" else session.strategy.unsent(step)
    handoff = ResidualHandoff(residuals, leaves=kind == "left")
    session.strategy.wants_whole(kind == "stopped" and session.callbacks.defines("on_end"))
    refreshes = session.strategy.refreshes()
    buckets = range(len(refreshes), len(refreshes) + len(residuals))
    ring.open_step(exchange_number, [*refreshes, *handoff.memories])
    session.strategy.refresh(ring)
    for bucket in buckets:
        ring.start(bucket)
    digest = agree(session, ring, StepRecord())
    session.checkpoints.settle(step, digest)
    session.strategy.refreshed()
    for bucket in buckets:
        ring.wait(bucket)
    handoff.finish()
    ring.close_step()
    session.checkpoints.flush()
    return _outcome(session, kind, digest)


def _outcome(session: JobSession, kind: OutcomeKind, digest: bytes) -> Outcome:
    replica = session.replica
    if kind in ("finished", "stopped"):
        session.tell("on_end", session.metrics)
    if kind == "finished" and session.callbacks.rank == 0 and replica.step == replica.skipped:
        session.warn(
            "nothing_trained",
            f"each of {counted(replica.step, 'step')} was skipped, because its gradients were not"
            " finite, so the weights are the initial ones: look for overflow in loss() and for bad"
            " rows",
        )
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
