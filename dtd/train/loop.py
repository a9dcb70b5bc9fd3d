"""The training loop: one generation, from the state all ranks hold to their last common step.

    open the step -> batch -> forward, backward (buckets leave) -> wait -> control word -> commit

With `strategy.update = "owner"` a commit is followed by the copies of its results
(`dtd.train.state.owned_updates`), before anything looks at the state.

The evaluation of a state, and the agreement on its digest, belong to the step that follows this
state.  So every step is opened once, in order, and whether these are due depends on the committed
step alone.  The ring numbers the opened steps consecutively, beginning with the first step of the
generation; if a round of local steps is opened as a whole (`dtd.engine.rounds`), the job's
step count advances faster.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from dtd.engine.agenda import BeforeStep, after_commit, before_step
from dtd.engine.control_word import ControlWord, Flags
from dtd.exchange.api import BucketMemory, Collective, CommTiming
from dtd.host.process_memory import mapped_blocks, trim_freed_memory
from dtd.observe.profile.spans import COLLECT, COMMIT, COMPUTE, VOTE
from dtd.strategy.codec.api import ResidualHandoff, World
from dtd.text.shown import counted
from dtd.train.agreement import agree, compare_moving, exchange, record_progress, timed_gather
from dtd.train.evaluation import judge
from dtd.train.record import EvalRecord, Outcome, OutcomeKind, StepRecord
from dtd.train.row_shares import RowShares
from dtd.train.session import JobSession
from dtd.train.state.owned_updates import OwnedUpdates
from dtd.train.step import check_skips, commit, contribute


class Loop:
    """The steps of one generation.

    Args:
        session: the job's session.
        ring: connects the ranks of the generation.
        writers: ranks that save the state.
        voters: ranks that already held the initial state; None for all.
        servers: how many of the last ranks are parameter servers.
        names: of the workers, in rank order.
    """

    def __init__(
        self,
        session: JobSession,
        ring: Collective,
        writers: AbstractSet[int],
        voters: AbstractSet[int] | None,
        servers: int,
        names: Sequence[str],
    ) -> None:
        self._outcome: Outcome | None = None
        self._session = session
        self._ring = ring
        self._writes = ring.rank in writers
        self._voters = voters
        self._trainers = ring.world_size - servers
        self._servers = servers
        self._rows = RowShares(session, ring, self._trainers, names)
        self._owned = (
            OwnedUpdates(session.replica, lambda: record_progress(session, ring))
            if session.spec.strategy.copies_updates
            else None
        )
        self._record = StepRecord()
        self._exchange_number = 0
        self._met = False
        self._begun_s = 0.0

    def run(self) -> Outcome:
        """Train until the job or the generation ends.

        Raises:
            RingBroken: the generation is over; a computed step may be committed by other ranks.
            DivergenceError: replicas differ.
            TaskError: the task failed, or too many steps in a row were skipped.
        """
        profiler, ring = self._session.profiler, self._ring
        try:
            self._begin()
            while self._open():
                self._compute()
                self._commit()
        except BaseException:
            profiler.end_generation(ring, waits=False)
            raise
        assert self._outcome is not None
        profiler.end_generation(ring, waits=self._outcome.kind in ("finished", "stopped"))
        return self._outcome

    def _begin(self) -> None:
        session, ring, step = self._session, self._ring, self._session.replica.step
        session.servers = self._servers
        session.strategy.regroup(
            World(rank=ring.rank, size=ring.world_size, servers=self._servers, first_step=step)
        )
        session.memory.regroup(ring.world_size)
        self._rows.begin()
        session.callbacks.rank, session.callbacks.world_size = ring.rank, ring.world_size
        compare = partial(compare_moving, session, ring, self._voters)
        with mapped_blocks():
            self._exchange_number = session.strategy.redistribute(ring, step, compare)
        if self._owned is not None:
            session.checkpoints.drop()  # a digest, and a draft, of results that may be replaced now
            self._copy_owned()

    def _open(self) -> bool:
        """Open the next step and do what is due before it; False if the generation has ended."""
        if self._outcome is not None:
            return False
        session, ring, strategy = self._session, self._ring, self._session.strategy
        session.profiler.advance(ring, session.replica.step)
        self._record, last = StepRecord(), session.is_last
        session.open()
        due = self._due(last=last)
        strategy.wants_whole(_shows_model(session, due))
        self._open_exchange(strategy.refreshes() if last else session.exchanges())
        digest = self._agree() if due.agree else b""
        strategy.refresh(ring)  # overwrites what is not held any more: only after the agreement
        if due.announce_start or due.evaluate or due.finish:
            with mapped_blocks():  # a whole model is needed for a moment
                strategy.refreshed()
        if due.catch_up:
            self._catch_up(digest, last=last)
        if due.announce_start:
            session.callbacks.tell("on_start", {})
        if due.divide:
            self._rows.reconsider(self._record)
        if due.evaluate:
            self._evaluate()
        self._met = True
        if due.finish:
            self._finish(digest)
        return self._outcome is None

    def _compute(self) -> None:
        """Compute this rank's part of the open step while it is sent, and wait for the sums."""
        session, marks = self._session, self._session.profiler.marks
        self._begun_s = time.perf_counter()
        marks.begin_step()
        with session.replica.own.unchanged("loss()"), session.memory.step():
            contribute(session, self._ring, self._record)
        marks.ended(COMPUTE)
        session.strategy.collect(self._ring)
        marks.ended(COLLECT)
        session.engine.prepare()

    def _commit(self) -> None:
        """Vote on the computed step and commit it; then do what is due after it."""
        session, ring, record = self._session, self._ring, self._record
        replica, marks = session.replica, session.profiler.marks
        flags = session.reporter.flags()
        word = exchange(session, ring, flags)
        averaged_s = time.perf_counter()
        marks.ended(VOTE)
        commit(session, record)
        marks.ended(COMMIT)
        marks.end_step(replica.step)
        record.optimizer_s += time.perf_counter() - averaged_s
        timings = [ring.close_step()]
        try:
            timings += self._copy_owned()
        finally:  # the step is committed, whether or not the copies arrive
            record.step_s = time.perf_counter() - self._begun_s
            record.communicated(timings)
            self._rows.measured(record)
            _report(session, record)
        check_skips(session)
        self._follow(word, flags)

    # --- before a step -----------------------------------------------------------------------

    def _due(self, *, last: bool) -> BeforeStep:
        """Return the actions that are due before the step."""
        session, plan = self._session, self._session.plan
        step, evaluates = session.replica.step, session.data.evaluator is not None
        return before_step(
            met=self._met,
            last=last,
            evaluates=evaluates and (plan.evaluation_due(step) or last),
            awaits_digest=session.checkpoints.deferred.awaits(step),
            divides=self._rows.due(),
        )

    def _open_exchange(self, buckets: Sequence[BucketMemory]) -> None:
        self._ring.open_step(self._exchange_number, buckets)
        self._exchange_number += 1

    def _copy_owned(self) -> list[CommTiming]:
        """Replace this rank's results of the last update by their owners', if the job does so."""
        if self._owned is None:
            return []
        timings = self._owned.copy(self._ring, self._exchange_number)
        self._exchange_number += len(timings)
        return timings

    def _agree(self) -> bytes:
        """Agree with all ranks on the state; returns its digest."""
        session, ring = self._session, self._ring
        digest = agree(session, ring, self._record, voters=None if self._met else self._voters)
        ring.agreed()
        session.checkpoints.settle(session.replica.step, digest)
        session.strategy.keep_redistributed()
        if session.replica.shards is not None:
            trim_freed_memory()
        return digest

    def _catch_up(self, digest: bytes, *, last: bool) -> None:
        """Save an agreed state whose checkpoint was due when its generation or writer was lost."""
        session, key = self._session, self._session.key
        if not (session.plan.checkpoint_due(key.step) or last):
            return
        part, checkpoints = session.replica.held_part, session.checkpoints
        if self._writes and not checkpoints.holds(key, self._ring.world_size, part):
            self._checkpoint(waits=last, agreed=digest)
            checkpoints.settle(key.step, digest)
        else:
            session.reporter.agreed(key, digest)

    def _evaluate(self) -> None:
        session, ring, evaluator = self._session, self._ring, self._session.data.evaluator
        assert evaluator is not None
        replica = session.replica
        unchanged = replica.own.unchanged("the evaluation")
        with unchanged, _kept_buffers(session), replica.evaluated_weights():
            session.metrics = evaluator.evaluate(
                replica.model,
                own=session.plan.slice_of(
                    evaluator.rows, rank=ring.rank, world_size=self._trainers
                ),
                gather=lambda word: timed_gather(ring, self._record, word),
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
                rows=evaluator.rows,
            )
        )
        session.callbacks.tell("on_evaluation", session.metrics)

    # --- after a step ------------------------------------------------------------------------

    def _follow(self, word: ControlWord, flags: Flags) -> None:
        """Do what is due after the commit."""
        session, step = self._session, self._session.replica.step
        after = after_commit(
            word,
            flags,
            checkpoint_due=session.plan.checkpoint_due(step),
            digest_due=session.plan.digest_due(step),
            last=session.is_last,
        )
        if after.checkpoint:
            self._checkpoint(waits=after.waits)
        if after.digest:
            session.checkpoints.take_digest(session.replica)
        if after.ending is not None:
            self._end_early(after.ending, agrees=after.agree)

    def _checkpoint(self, *, waits: bool, agreed: bytes = b"") -> None:
        session = self._session
        session.checkpoints.take(
            session.replica,
            key=session.key,
            world_size=self._ring.world_size,
            writes=self._writes,
            waits=waits,
            agreed=agreed,
        )
        session.memory.copied(session.checkpoints.snapshot_bytes)
        session.reporter.progress()

    # --- the end -----------------------------------------------------------------------------

    def _finish(self, digest: bytes) -> None:
        """The job is complete: its state is agreed on and saved."""
        self._ring.close_step()
        self._session.checkpoints.flush()
        self._outcome = _outcome(self._session, "finished", digest)

    def _end_early(self, kind: OutcomeKind, *, agrees: bool) -> None:
        """End the generation, after one more agreement on the state if it is due.

        Ranks that leave transfer their residuals to those that stay, unless the job stops.
        """
        session, ring, strategy = self._session, self._ring, self._session.strategy
        if not agrees:
            self._outcome = _outcome(session, kind, b"")
            return
        step = session.replica.step
        residuals = [] if kind == "stopped" else strategy.unsent(step)
        handoff = ResidualHandoff(residuals, leaves=kind == "left")
        strategy.wants_whole(kind == "stopped" and session.callbacks.defines("on_end"))
        refreshes = strategy.refreshes()
        buckets = range(len(refreshes), len(refreshes) + len(residuals))
        self._open_exchange([*refreshes, *handoff.memories])
        strategy.refresh(ring)
        for bucket in buckets:
            ring.start(bucket)
        digest = agree(session, ring, StepRecord())
        session.checkpoints.settle(step, digest)
        strategy.refreshed()
        for bucket in buckets:
            ring.wait(bucket)
        handoff.finish()
        ring.close_step()
        session.checkpoints.flush()
        self._outcome = _outcome(session, kind, digest)


def commit_at_take_over(session: JobSession) -> None:
    """Commit and report the prepared step of a generation that has ended; its times are 0."""
    record = StepRecord()
    commit(session, record)
    _report(session, record)


def _shows_model(session: JobSession, due: BeforeStep) -> bool:
    """Whether something looks at the whole model before the step; equal on all ranks."""
    told = session.callbacks.defines
    return (
        due.evaluate or (due.announce_start and told("on_start")) or (due.finish and told("on_end"))
    )


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
    logged: dict[str, float] = getattr(session.task, "take_logged", dict)()
    if logged:
        session.reporter.logged(record.step, logged)
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


def _outcome(session: JobSession, kind: OutcomeKind, digest: bytes) -> Outcome:
    replica = session.replica
    if kind in ("finished", "stopped"):
        session.callbacks.tell("on_end", session.metrics)
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
