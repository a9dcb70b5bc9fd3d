"""The parts of one step: contribute, commit.

`contribute` runs forward and backward over this rank's rows while full buckets leave; `commit`
applies what came back.  Between the two lies the exchange (`dtd.train.loop`).  A committed step is
a pure function of the state before it and the averaged buckets, so every rank ends with the same
state, and a rank that holds the buckets can commit after its ring broke.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import time
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor

from dtd.core.collective import Collective
from dtd.errors import TaskError
from dtd.train.plan import Share
from dtd.train.precision import autocast
from dtd.train.session import Session
from dtd.train.used_rows import UsedRows

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
    replica, gradients, buffers = session.replica, session.gradients, session.buffers
    session.begin(ring)
    loss_sum, weight = 0.0, 0.0
    used = session.used = UsedRows()
    for part, request in enumerate(share.requests):
        begun_s = time.perf_counter()
        loaded = session.loader.next(request)
        used.add(request, loaded)
        loaded_s = time.perf_counter()
        session.reporter.progress()
        ring.check()
        clock.data_s += loaded_s - begun_s
        key = draw_key(session.spec.job.seed, replica.step, share.first_rows[part])
        seed_draws(key, session.device)
        with autocast(session.spec.train.precision, session.device):
            returned = session.task.loss(replica.model, loaded.batch)
        loss, rows_weight, is_mean = _understand(returned, len(request.rows))
        if request is share.requests[-1]:
            gradients.hand_over_when_full(ring.start)
        ring.check()  # forward may have taken long, and backward takes longer
        part_of_batch = (len(request.rows) if is_mean else 1) / share.global_rows
        _backward(loss, part_of_batch * replica.scaler.scale)
        loss_sum += float(loss.detach()) * (len(request.rows) if is_mean else 1.0)
        weight += rows_weight
        clock.compute_s += time.perf_counter() - loaded_s
        session.reporter.progress()
    gradients.finish(ring.start)
    session.tail.write(
        loss_sum=loss_sum,
        weight=weight,
        end=bool(session.wants_end),
        used=used,
        present=gradients.present,
    )
    buffers.write(
        session.tail.buffer_elements,
        session.tail.buffer_words,
        share=share.rows / share.global_rows,
        follows=share.counts,
    )
    ring.start(len(gradients.memories))


def commit(session: Session) -> Committed:
    """Apply the averaged buckets: unscale, clip, update, advance; then tell the task.

    Gradients that are not finite update nothing.  Averaged ones are the same bytes on every rank,
    so all ranks skip the step or none does, whichever rank they came from.
    """
    replica, plan, gradients = session.replica, session.plan, session.gradients
    totals = session.tail.totals()
    position, rows = plan.position(replica.step), plan.global_rows(replica.step)
    lr = replica.set_learning_rates(session.spec, plan.steps_total)
    gradients.expose(totals.present)
    factor = rows / totals.weight / replica.scaler.scale if totals.weight else math.nan
    norm = gradients.norm() * factor
    finite = math.isfinite(norm)
    if finite:
        clip_norm = session.spec.train.clip_norm
        if clip_norm:
            factor *= min(1.0, clip_norm / (norm + _CLIP_EPSILON))
        if factor != 1.0:
            gradients.scale(factor)
        replica.optimizer.step()
        session.buffers.apply(session.tail.buffer_elements, session.tail.buffer_words)
        replica.updated()
    else:
        session.buffers.restore()
        replica.skipped_in_row += 1
    replica.scaler.update(finite=finite)
    missing, repeated = totals.used.against(plan.checksum(replica.step), rows)
    seed = plan.order_seed(position.epoch)
    replica.advance(position, rows, seed=seed, missing=missing, repeated=repeated)
    _enter_judgement(session, end=totals.end)
    session.committed()
    session.tell("on_step", {"loss": totals.loss, "lr": lr, "grad_norm": norm})
    return Committed(
        epoch=position.epoch,
        rows=rows,
        loss=totals.loss,
        lr=lr,
        grad_norm=norm,
        skipped=not finite,
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


def draw_key(seed: int, step: int, first_row: int) -> int:
    """What keys dropout in one micro-batch: never the rank."""
    return xxhash.xxh3_64_intdigest(struct.pack("<qqq", seed, step, first_row)) >> 1


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
