"""The parts of one step: contribution and commit.

`contribute` runs forward and backward over this rank's rows while full buckets are sent; `commit`
applies the results.  Between the two, the ranks wait for the sums and exchange control words
(`dtd.train.loop`).  A committed step is a pure function of the previous state and the averaged
buckets, so every rank ends with the same state, and a rank that holds the buckets can commit after
its ring has broken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dtd.errors import CodeError, TaskError
from dtd.exchange.api import Collective
from dtd.strategy.api import LossSum
from dtd.strategy.scalars import StepScalars
from dtd.train.data.rows import (
    MODULUS,
    NO_ROW,
    BatchRequest,
    UsedRows,
    draw_key,
    seed_generators,
    shape_of,
)
from dtd.train.plan import Share
from dtd.train.record import StepRecord
from dtd.train.session import JobSession
from dtd.train.state.buffers import estimated_anew, layers_with_statistics
from dtd.train.state.replica import LocalStepsUndo
from dtd.train.warm_up.model_setup import autocast

_CLIP_EPSILON = 1e-6
"""Constant of torch.nn.utils.clip_grad_norm_."""

_ROUND_PER_BATCH = 8
"""One micro-batch in so many of a round also goes through the weights that the round leads to."""

_LEAST_KEPT, _MOST_KEPT = 2, 8
"""Bounds of their number: a mean over fewer is too noisy, and more would take too much memory."""


def contribute(session: JobSession, ring: Collective, record: StepRecord) -> None:
    """Forward and backward over this rank's rows; on return every bucket has been submitted.

    In a round, this also takes the local steps.

    Raises:
        RingBroken: the generation is over; raised before computing results that would be discarded.
        TaskError: the task's `loss` does not return a loss.
    """
    session.begin(ring)
    begin_step = getattr(session.task, "begin_step", None)
    if begin_step is not None:
        begin_step(session.data.samples[0])
    session.used = UsedRows()
    shares = [
        session.plan.share(step, rank=ring.rank, world_size=ring.world_size - session.servers)
        for step in session.plan.round(session.replica.step)
    ]
    record.own_rows = sum(share.rows for share in shares)
    work = Computation(session, record, shares=shares, check=ring.check)
    with session.replica.recomputation:
        session.strategy.compute(work, ring)


class Computation:
    """One step's rows, model and optimizers for a strategy (`dtd.strategy.api.Computation`).

    `shares` are this rank's rows in each step of the round; none if it is computed already.
    """

    def __init__(
        self,
        session: JobSession,
        record: StepRecord,
        *,
        shares: Sequence[Share] = (),
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._session = session
        self._record = record
        self._shares = shares
        self._number = 0
        self._check = check
        self._kept: list[Any] = []
        self._recent: deque[tuple[Any, str, int, int]] = deque(maxlen=0)

    # --- rows ------------------------------------------------------------------------------

    def backward(
        self,
        update: str,
        number: int,
        *,
        last: Callable[[], None] = lambda: None,
        passed: Callable[[], None] = lambda: None,
    ) -> LossSum:
        # The first pass loads the batches, further passes reuse them.
        session, share = self._session, self._rows
        only = _parameters_of(session.replica.part(update)) if update else None
        loss_sum, weight = 0.0, 0.0
        for part, request in enumerate(share.requests):
            if number == 0:
                batch = self._load(request)
                if len(session.strategy.names) > 1:
                    self._kept.append(batch)
            else:
                batch = self._kept[part]
            begun_s = time.perf_counter() - session.strategy.waited_s
            key = draw_key(session.spec.job.seed, self._step, share.first_rows[part], number)
            seed_generators(key, session.device)
            self._recent.append((batch, update, len(request.rows), key))
            loss, rows_weight, is_mean = self._loss(batch, update, len(request.rows))
            if request is share.requests[-1]:
                last()
            self._check()  # forward may have taken long, and backward takes longer
            part_of_batch = (len(request.rows) if is_mean else 1) / share.global_rows
            _backward(loss, part_of_batch * session.replica.scaler.scale, only)
            passed()
            loss_sum += float(loss.detach()) * (len(request.rows) if is_mean else 1.0)
            weight += rows_weight
            ended_s = time.perf_counter() - session.strategy.waited_s
            self._record.compute_s += ended_s - begun_s
            session.reporter.progress()
        return LossSum(loss_sum=loss_sum, weight=weight)

    def _loss(self, batch: Any, update: str, rows: int) -> tuple[Tensor, float, bool]:
        session = self._session
        named = (update,) if update else ()
        precision = session.spec.train.precision
        if session.watch.reads:
            session.strategy.refreshed()
        with session.watch.unchanged("loss()"), autocast(precision, session.device):
            returned = session.task.loss(session.replica.model, batch, *named)
        session.strategy.refreshed()  # also what forward has not used
        return _understand(returned, rows)

    def _load(self, request: BatchRequest) -> Any:
        session = self._session
        begun_s = time.perf_counter()
        loaded = session.data.loader.next(request)
        session.used.add(request, loaded)
        self._record.data_s += time.perf_counter() - begun_s
        session.profiler.marks.loaded(begun_s)
        session.reporter.progress()
        session.reporter.begins("batch", shape_of(loaded.batch))
        self._check()
        return loaded.batch

    @property
    def _rows(self) -> Share:
        """This rank's share of the current step."""
        assert self._shares, "the step is computed already"
        return self._shares[self._number]

    @property
    def _step(self) -> int:
        return self._session.replica.step + self._number

    # --- rounds ----------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return len(self._shares)

    @property
    def share(self) -> float:
        rows = sum(share.rows for share in self._shares)
        return rows / sum(share.global_rows for share in self._shares)

    def take_step(self, number: int) -> None:
        self._number = number

    def remember_optimizer(self) -> Callable[[], None]:
        return LocalStepsUndo(self._session.replica).restore

    def local_update_made(self) -> None:
        schedule = self._session.replica.schedule
        if schedule is not None:
            schedule.step()

    # --- statistics ------------------------------------------------------------------------

    def keep_batches(self) -> bool:
        """Keep the last ones of the round, of which a few are enough."""
        if not layers_with_statistics(self._session.replica.model):
            return False
        batches = sum(len(share.requests) for share in self._shares)
        kept = min(_MOST_KEPT, max(_LEAST_KEPT, batches // _ROUND_PER_BATCH))
        self._recent = deque(maxlen=kept)
        return True

    def measure_statistics(self) -> None:
        """Count the rows as used once, since no gradient is taken here.

        Losses are computed as in training: a task's loss may need gradients to be enabled.
        """
        session = self._session
        with estimated_anew(session.replica.model):
            while self._recent:
                batch, update, rows, key = self._recent.popleft()
                begun_s = time.perf_counter()
                seed_generators(key, session.device)
                self._loss(batch, update, rows)
                self._record.compute_s += time.perf_counter() - begun_s
                session.reporter.progress()
                self._check()

    # --- scalars ---------------------------------------------------------------------------

    def write_scalars(self, scalars: StepScalars, sums: LossSum, present: Sequence[bool]) -> None:
        """Write them, and note the stream's next position for the commit."""
        session = self._session
        self._note_position()
        scalars.write(
            loss_sum=sums.loss_sum,
            weight=sums.weight,
            end=bool(session.wants_end),
            used=session.used.words(),
            present=present,
        )
        session.buffers.write(
            scalars.buffer_elements,
            scalars.buffer_words,
            share=self.share,
            follows=self._rows.counts,
        )

    def _note_position(self) -> None:
        session = self._session
        if session.data.stream is not None:
            begun_s = time.perf_counter()
            after = (session.replica.step + self.steps) * session.spec.job.global_batch_size
            session.stream_position = session.data.stream.position_at(after)
            self._record.data_s += time.perf_counter() - begun_s

    # --- updates ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def tentative_update(self) -> Iterator[None]:
        """The time counts as the optimizer's."""
        begun_s = time.perf_counter()
        yield
        self._record.optimizer_s += time.perf_counter() - begun_s
        self._session.reporter.progress()

    def begin_update(self, weight: float) -> float:
        """Gradients are means over rows of a loss that was scaled."""
        session, replica = self._session, self._session.replica
        replica.set_learning_rates(session.spec, session.plan.steps_total, ahead=self._number)
        rows = session.plan.global_rows(self._step)
        return rows / weight / replica.scaler.scale if weight else math.nan

    @property
    def clips(self) -> bool:
        return self._session.spec.train.clip_norm > 0

    def clip(self, norm: float) -> float:
        """Return the factor of torch.nn.utils.clip_grad_norm_; 1 if the job does not clip."""
        clip_norm = self._session.spec.train.clip_norm
        return min(1.0, clip_norm / (norm + _CLIP_EPSILON)) if clip_norm else 1.0

    def optimizer(self, update: str) -> torch.optim.Optimizer:
        return self._session.replica.part(update)

    def change_state(self, scalars: StepScalars) -> None:
        # Buffers come before the optimizer, whose hooks may change them, as in plain torch.
        self._session.engine.apply()
        self._session.buffers.apply(scalars.buffer_elements, scalars.buffer_words)

    def update(self, update: str) -> None:
        self._session.replica.update(update)


def commit(session: JobSession, record: StepRecord) -> None:
    """Apply the last update, advance the state, then call the task's callback.

    If the gradients of any update are not finite, the step updates nothing, on every rank.
    """
    replica, plan = session.replica, session.plan
    # What a hook of the optimizer or a callback draws is equal on all ranks, whatever their rows.
    key = draw_key(session.spec.job.seed, replica.step, NO_ROW)
    seed_generators(key, session.device)
    stats = session.strategy.apply(Computation(session, StepRecord()))
    steps = plan.round(replica.step)
    record.lr = float(replica.optimizer.param_groups[0]["lr"])
    if stats.finite:
        replica.updated(len(steps))
    else:
        session.take_back()
        replica.skipped_in_row += len(steps)
    replica.scaler.update(finite=stats.finite)
    _advance(session, record, UsedRows.of_words(stats.totals.used))
    _enter_judgement(session, end=stats.totals.end)
    session.committed()
    record.generation, record.rank = session.key.generation, session.callbacks.rank
    record.step, record.skipped_steps = replica.step, replica.skipped
    record.steps, record.skipped = len(steps), not stats.finite
    record.loss = sum(one.loss for one in stats.updates)
    record.grad_norm = math.hypot(*(one.norm for one in stats.updates))
    figures = {"loss": record.loss}
    figures |= {f"{one.name}_loss": one.loss for one in stats.updates if one.name}
    session.callbacks.tell("on_step", {**figures, "lr": record.lr, "grad_norm": record.grad_norm})


def _advance(session: JobSession, record: StepRecord, used: UsedRows) -> None:
    """Move the state's counters on by a step or round, and compare the rows used with the plan."""
    replica, plan = session.replica, session.plan
    steps = plan.round(replica.step)
    record.rows = sum(map(plan.global_rows, steps))
    planned = sum(map(plan.checksum, steps)) % MODULUS
    record.rows_missing, record.rows_repeated = used.against(planned, record.rows)
    for step in steps:
        position = plan.position(step)
        seed = plan.order_seed(position.epoch)
        replica.advance(position, plan.global_rows(step), seed=seed)
        record.epoch = position.epoch
    replica.ledger.rows_missing += record.rows_missing
    replica.ledger.rows_repeated += record.rows_repeated
    if session.data.stream is not None:
        replica.stream = session.stream_position
        session.data.stream.committed(replica.step * session.spec.job.global_batch_size)


def _enter_judgement(session: JobSession, *, end: bool) -> None:
    """Make the result of the evaluation before this step part of the state."""
    replica = session.replica
    if session.judged is not None:
        replica.early_stop = session.judged
    if end:
        session.ended = session.wants_end or "a callback of the task said so on another worker"
        replica.ended_of = session.plan.steps_total
        replica.early_stop = dataclasses.replace(replica.early_stop, waited=0)


def check_skips(session: JobSession) -> None:
    """End a job that has skipped too many steps in a row.

    Raises:
        TaskError: the last `train.max_skipped_steps` steps were skipped (on every rank).
    """
    skipped, limit = session.replica.skipped_in_row, session.spec.train.max_skipped_steps
    if 0 < limit <= skipped:
        raise TaskError(
            f"the gradients of {skipped} steps in a row were not finite, the last of them step"
            f" {session.replica.step}",
            remedy="lower optimizer.lr, set train.clip_norm or look for bad rows and for overflow"
            " in the model; train.max_skipped_steps is the limit",
        )


def _understand(returned: Any, rows: int) -> tuple[Tensor, float, bool]:
    """Return (loss, its weight, whether it is a mean over rows) for the result of the task."""
    pair = returned if isinstance(returned, tuple) else (returned, rows)
    loss = pair[0]
    if not (len(pair) == 2 and isinstance(loss, Tensor) and loss.numel() == 1):
        raise CodeError(
            f"loss() of the task returned {type(returned).__name__}",
            remedy="return the mean over the rows as a tensor with one element, or (sum, weight)",
        )
    if not loss.requires_grad:
        raise CodeError(
            "loss() of the task does not depend on any trained parameter",
            remedy="compute it from the model that is passed in, without no_grad() or detach()",
        )
    return loss, float(pair[1]), not isinstance(returned, tuple)


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _backward(loss: Tensor, factor: float, only: Sequence[Tensor] | None) -> None:
    """Accumulate gradients; with several optimizers only those of the one that is updated."""
    scaled: Any = loss if factor == 1.0 else loss * factor
    scaled.backward(inputs=only)
