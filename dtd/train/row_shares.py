"""The division of rows among the ranks of one generation, by weights or by measured speed.

What decides is `dtd.engine.shares`; this gathers what it needs and makes the plan follow.  The
plan changes between two steps, on all ranks before the same one, and a step that is redone in
another generation may be divided otherwise: its rows are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dtd.engine.control_word import read_words
from dtd.engine.shares import applies, costs_of, decide, pack_cost, unmatched, unpack_cost
from dtd.exchange.api import Collective
from dtd.train.agreement import timed_gather
from dtd.train.record import StepRecord
from dtd.train.session import JobSession


class RowShares:
    """How the rows of each step are divided in one generation."""

    def __init__(
        self, session: JobSession, ring: Collective, trainers: int, names: Sequence[str]
    ) -> None:
        self._session = session
        self._ring = ring
        self._trainers = trainers
        self._names = names[:trainers]
        self._measured = session.spec.elastic.shares == "measured"

    def begin(self) -> None:
        """Divide the rows of the first step by the job's weights, else equally."""
        weights = self._session.spec.elastic.shares
        self._divide(costs_of(weights, self._names) if isinstance(weights, dict) else ())
        if self._ring.rank == 0:
            self._tell_doubts()

    def due(self) -> bool | None:
        """Whether the division is reconsidered now; None if it never is."""
        session = self._session
        return session.plan.divides(session.replica.step) if self._measured else None

    def reconsider(self, record: StepRecord) -> None:
        """Gather how fast all ranks are, and divide the next rows anew if that is worth it."""
        session, plan = self._session, self._session.plan
        words = timed_gather(self._ring, record, pack_cost(session.pace.cost))
        decision = decide(
            plan.costs,
            read_words(words, unpack_cost)[: self._trainers],
            rows=session.spec.job.global_batch_size,
            least=plan.least_rows,
        )
        if not decision.reason:
            return
        session.pace.restart()
        self._divide(decision.costs)
        if self._ring.rank == 0:
            session.warn("shares_changed", decision.reason)

    def measured(self, record: StepRecord) -> None:
        """A step is committed: its times tell how fast this rank is."""
        own_s = record.data_s + record.compute_s + record.optimizer_s
        self._session.pace.add(own_s, rows=record.own_rows, steps=record.steps)

    def _divide(self, costs: tuple[int, ...]) -> None:
        """Follow these costs from the next step on, whose rows are loaded at once."""
        session, ring = self._session, self._ring
        session.plan = plan = replace(session.plan, costs=costs)
        session.pace.disturbed()
        requests = plan.requests(rank=ring.rank, world_size=self._trainers)
        session.data.loader.start(requests, at=plan.request_number(session.replica.step))

    def _tell_doubts(self) -> None:
        """Warn of settings that have no effect."""
        session, shares = self._session, self._session.spec.elastic.shares
        unknown = unmatched(shares, self._names) if isinstance(shares, dict) else []
        if unknown and self._names:
            session.warn(
                "shares_unused",
                f"elastic.shares names {', '.join(unknown)}, and the workers are"
                f" {', '.join(self._names)}: name a worker, or the host with which it begins",
            )
        rows, least = session.spec.job.global_batch_size, session.plan.least_rows
        if shares != "equal" and not applies(rows, self._trainers, least):
            session.warn(
                "shares_unused",
                f"{rows} rows are divided equally: {self._trainers} workers need {least} each (two"
                " in each micro-batch) to divide them by speed; raise job.global_batch_size or"
                " lower train.grad_accumulation",
            )
