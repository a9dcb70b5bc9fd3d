"""The parts of one step: contribute, commit.

`contribute` runs forward and backward over this rank's rows while full buckets leave; `commit`
applies what came back.  Between the two lies the exchange (`dtd.train.loop`).  A committed step is
a pure function of the state before it and the averaged buckets, so every rank ends with the same
state, and a rank that holds the buckets can commit after its ring broke.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor

from dtd.errors import TaskError
from dtd.strategy.api import LossSum
from dtd.strategy.scalars import StepScalars
from dtd.train.data.rows import BatchRequest, shape_of
from dtd.train.data.used_rows import UsedRows
from dtd.train.model_setup import autocast
from dtd.train.plan import Share
from dtd.train.session import Session
from dtd.transport.api import Collective

_CLIP_EPSILON = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


@dataclass(slots=True)
class Clock:
    """Where the time of one step went, in seconds; `aside_s` are exchanges beside training."""

    data_s: float = 0.0
    compute_s: float = 0.0
    optimizer_s: float = 0.0
    aside_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What a committed step came to; equal on all ranks.

    Attributes:
        epoch: of its rows.
        rows: of the global batch.
        loss: mean over them.
        lr: learning rate of the first parameter group.
        grad_norm: before clipping.
        skipped: nothing was updated.
        rows_missing: rows of the plan that went through no rank's model.
        rows_repeated: rows that did, and are not the plan's.
    """

    epoch: int
    rows: int
    loss: float
    lr: float
    grad_norm: float
    skipped: bool
    rows_missing: int
    rows_repeated: int


def contribute(session: Session, ring: Collective, share: Share, clock: Clock) -> None:
    """Forward and backward over this rank's rows; every bucket is handed over on return.

    Raises:
        RingBroken: before it computes what would be thrown away.
        TaskError: the task's `loss` does not return one.
    """
    session.begin(ring)
    session.used = UsedRows()
    work = Computation(session, clock, share=share, check=ring.check)
    session.strategy.compute(work, ring)


class Computation:
    """One step's rows, model and optimizers; see `dtd.strategy.api.Computation`.

    Args:
        session: whose.
        clock: of the step.
        share: this rank's rows; None where the step is computed already.
        check: raises once the generation is over.
    """

    def __init__(
        self,
        session: Session,
        clock: Clock,
        *,
        share: Share | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._session = session
        self._clock = clock
        self._share = share
        self._check = check
        self._kept: list[Any] = []

    # --- rows ------------------------------------------------------------------------------

    def backward(self, update: str, number: int, *, last: Callable[[], None]) -> LossSum:
        """The first pass loads the batches; each further one has the same.

        Raises:
            TaskError: the task's `loss` does not return one.
        """
        session, share = self._session, self._rows
        loss_sum, weight = 0.0, 0.0
        for part, request in enumerate(share.requests):
            if number == 0:
                batch = self._load(request)
                if len(session.strategy.names) > 1:
                    self._kept.append(batch)
            else:
                batch = self._kept[part]
            begun_s = time.perf_counter()
            key = draw_key(
                session.spec.job.seed, session.replica.step, share.first_rows[part], number
            )
            seed_draws(key, session.device)
            loss, rows_weight, is_mean = self._loss(batch, update, len(request.rows))
            if request is share.requests[-1]:
                last()
            self._check()  # forward may have taken long, and backward takes longer
            part_of_batch = (len(request.rows) if is_mean else 1) / share.global_rows
            _backward(loss, part_of_batch * session.replica.scaler.scale)
            loss_sum += float(loss.detach()) * (len(request.rows) if is_mean else 1.0)
            weight += rows_weight
            self._clock.compute_s += time.perf_counter() - begun_s
            session.reporter.progress()
        return LossSum(loss_sum=loss_sum, weight=weight)

    def _loss(self, batch: Any, update: str, rows: int) -> tuple[Tensor, float, bool]:
        session = self._session
        named = (update,) if update else ()
        precision = session.spec.train.precision
        with session.watch.unchanged("loss()"), autocast(precision, session.device):
            returned = session.task.loss(session.replica.model, batch, *named)
        return _understand(returned, rows)

    def _load(self, request: BatchRequest) -> Any:
        session = self._session
        begun_s = time.perf_counter()
        loaded = session.loader.next(request)
        session.used.add(request, loaded)
        self._clock.data_s += time.perf_counter() - begun_s
        session.reporter.progress()
        session.reporter.begins("batch", shape_of(loaded.batch))
        self._check()
        return loaded.batch

    @property
    def _rows(self) -> Share:
        assert self._share is not None, "the step is computed already"
        return self._share

    # --- scalars ---------------------------------------------------------------------------

    def write_scalars(self, scalars: StepScalars, sums: LossSum, present: Sequence[bool]) -> None:
        """Also reads on to where the step ends, so that it can be committed without the stream."""
        session, share = self._session, self._rows
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
            share=share.rows / share.global_rows,
            follows=share.counts,
        )

    def _note_position(self) -> None:
        session = self._session
        if session.stream is not None:
            begun_s = time.perf_counter()
            after = (session.replica.step + 1) * session.spec.job.global_batch_size
            session.stream_position = session.stream.position_at(after)
            self._clock.data_s += time.perf_counter() - begun_s

    # --- updates ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def tentative_update(self) -> Iterator[None]:
        """Counts as the optimizer's time."""
        begun_s = time.perf_counter()
        yield
        self._clock.optimizer_s += time.perf_counter() - begun_s
        self._session.reporter.progress()

    def begin_update(self, weight: float) -> float:
        """Gradients are means over rows, of a loss that was scaled."""
        session, replica = self._session, self._session.replica
        replica.set_learning_rates(session.spec, session.plan.steps_total)
        rows = session.plan.global_rows(replica.step)
        return rows / weight / replica.scaler.scale if weight else math.nan

    def clip(self, norm: float) -> float:
        """As torch.nn.utils.clip_grad_norm_; 1 if the job does not clip."""
        clip_norm = self._session.spec.train.clip_norm
        return min(1.0, clip_norm / (norm + _CLIP_EPSILON)) if clip_norm else 1.0

    def optimizer(self, update: str) -> torch.optim.Optimizer:
        """One of several, or the only one."""
        return self._session.replica.part(update)

    def change_state(self, scalars: StepScalars) -> None:
        """Buffers first, as forward does in plain torch: the optimizer's hooks may change them."""
        self._session.engine.apply()
        self._session.buffers.apply(scalars.buffer_elements, scalars.buffer_words)

    def update(self, update: str) -> None:
        """Let it make its step."""
        self._session.replica.update(update)


def commit(session: Session) -> Committed:
    """Make the last update and advance; then tell the task.

    If gradients of any update are not finite, the step updates nothing, on all ranks alike.
    """
    replica, plan = session.replica, session.plan
    stats = session.strategy.apply(Computation(session, Clock()))
    totals, updates = stats.totals, stats.updates
    position, rows = plan.position(replica.step), plan.global_rows(replica.step)
    lr = float(replica.optimizer.param_groups[0]["lr"])
    if stats.finite:
        replica.updated()
    else:
        session.take_back()
        replica.skipped_in_row += 1
    replica.scaler.update(finite=stats.finite)
    used = UsedRows.of_words(totals.used)
    missing, repeated = used.against(plan.checksum(replica.step), rows)
    seed = plan.order_seed(position.epoch)
    replica.advance(position, rows, seed=seed, missing=missing, repeated=repeated)
    if session.stream is not None:
        replica.stream = session.stream_position
        session.stream.committed(replica.step * session.spec.job.global_batch_size)
    _enter_judgement(session, end=totals.end)
    session.committed()
    loss, norm = sum(one.loss for one in updates), math.hypot(*(one.norm for one in updates))
    losses = {f"{one.name}_loss": one.loss for one in updates if one.name}
    session.tell("on_step", {"loss": loss, **losses, "lr": lr, "grad_norm": norm})
    return Committed(
        epoch=position.epoch,
        rows=rows,
        loss=loss,
        lr=lr,
        grad_norm=norm,
        skipped=not stats.finite,
        rows_missing=missing,
        rows_repeated=repeated,
    )


def _enter_judgement(session: Session, *, end: bool) -> None:
    """What the evaluation before this step has shown counts from here on."""
    replica = session.replica
    if session.judged is not None:
        replica.early_stop = session.judged
    if end:
        session.ended = session.wants_end or "a callback of the task said so on another worker"
        replica.ended_of = session.plan.steps_total
        replica.early_stop = dataclasses.replace(replica.early_stop, waited=0)


def check_skips(session: Session) -> None:
    """Give up on a job that has not updated anything for long.

    Raises:
        TaskError: the last `train.max_skipped_steps` steps were skipped, on every rank alike.
    """
    skipped, limit = session.replica.skipped_in_row, session.spec.train.max_skipped_steps
    if 0 < limit <= skipped:
        raise TaskError(
            f"the gradients of {skipped} steps in a row were not finite, the last of them step"
            f" {session.replica.step}",
            remedy="lower optimizer.lr, set train.clip_norm or look for bad rows and for overflow"
            " in the model; train.max_skipped_steps is the limit",
        )


def draw_key(seed: int, step: int, first_row: int, update: int = 0) -> int:
    """What keys dropout in one micro-batch of one of a step's updates: never the rank."""
    words = (seed, step, first_row, update) if update else (seed, step, first_row)
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(words)}q", *words)) >> 1


def seed_draws(key: int, device: torch.device) -> None:
    """Set the generators that the model draws from; torch.manual_seed would visit every device."""
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(key)


def _understand(returned: Any, rows: int) -> tuple[Tensor, float, bool]:
    """(loss, its weight, whether it is a mean over rows) of what the task's `loss` returned."""
    pair = returned if isinstance(returned, tuple) else (returned, rows)
    loss = pair[0]
    if not (len(pair) == 2 and isinstance(loss, Tensor) and loss.numel() == 1):
        raise TaskError(
            f"loss() of the task returned {type(returned).__name__}",
            remedy="return the mean over the rows as a tensor with one element, or (sum, weight)",
        )
    if not loss.requires_grad:
        raise TaskError(
            "loss() of the task does not depend on any trained parameter",
            remedy="compute it from the model that is passed in, without no_grad() or detach()",
        )
    return loss, float(pair[1]), not isinstance(returned, tuple)


def _backward(loss: Tensor, factor: float) -> None:
    scaled: Any = loss if factor == 1.0 else loss * factor
    scaled.backward()
