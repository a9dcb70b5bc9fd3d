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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor

from dtd.errors import TaskError
from dtd.train.plan import Share
from dtd.train.precision import autocast
from dtd.train.rows import BatchRequest, shape_of
from dtd.train.session import Session
from dtd.train.tail import Totals
from dtd.train.updates import Applied, Undo, Update, attend_to
from dtd.train.used_rows import UsedRows
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

    Where several updates follow one another, all but the last are summed and applied, tentatively.

    Raises:
        RingBroken: before it computes what would be thrown away.
        TaskError: the task's `loss` does not return one.
    """
    session.begin(ring)
    session.used = UsedRows()
    kept: list[Any] = []
    for number, update in enumerate(session.active):
        attend_to(update, session.updates)
        loss_sum, weight = _pass(session, ring, share, clock, number, kept)
        if update is session.active[-1]:
            _note_position(session, clock)
            _hand_over_tail(session, share, update, loss_sum, weight)
            ring.start(update.tail_bucket)
            return
        update.tail.write(
            loss_sum=loss_sum,
            weight=weight,
            end=False,
            used=UsedRows(),
            present=update.gradients.present,
        )
        ring.start(update.tail_bucket)
        update.wait(ring)
        begun_s = time.perf_counter()
        totals = update.tail.totals()
        session.applied.append(_apply(session, update, totals, totals.present, tentative=True))
        clock.optimizer_s += time.perf_counter() - begun_s
        session.reporter.progress()


def _pass(
    session: Session, ring: Collective, share: Share, clock: Clock, number: int, kept: list[Any]
) -> tuple[float, float]:
    """One update's forward and backward; returns (sum of losses, sum of weights).

    The first pass loads the batches, and keeps them if there is another one.
    """
    replica, update = session.replica, session.active[number]
    precision = session.spec.train.precision
    start = update.start(ring)
    loss_sum, weight = 0.0, 0.0
    for part, request in enumerate(share.requests):
        if number == 0:
            batch = _load(session, ring, request, clock)
            if len(session.active) > 1:
                kept.append(batch)
        else:
            batch = kept[part]
        begun_s = time.perf_counter()
        key = draw_key(session.spec.job.seed, replica.step, share.first_rows[part], number)
        seed_draws(key, session.device)
        named = (update.name,) if update.name else ()
        with session.watch.unchanged("loss()"), autocast(precision, session.device):
            returned = session.task.loss(replica.model, batch, *named)
        loss, rows_weight, is_mean = _understand(returned, len(request.rows))
        if request is share.requests[-1]:
            update.gradients.hand_over_when_full(start)
        ring.check()  # forward may have taken long, and backward takes longer
        part_of_batch = (len(request.rows) if is_mean else 1) / share.global_rows
        _backward(loss, part_of_batch * replica.scaler.scale)
        loss_sum += float(loss.detach()) * (len(request.rows) if is_mean else 1.0)
        weight += rows_weight
        clock.compute_s += time.perf_counter() - begun_s
        session.reporter.progress()
    update.gradients.finish(start)
    return loss_sum, weight


def _load(session: Session, ring: Collective, request: BatchRequest, clock: Clock) -> Any:
    begun_s = time.perf_counter()
    loaded = session.loader.next(request)
    session.used.add(request, loaded)
    clock.data_s += time.perf_counter() - begun_s
    session.reporter.progress()
    session.reporter.begins("batch", shape_of(loaded.batch))
    ring.check()
    return loaded.batch


def _note_position(session: Session, clock: Clock) -> None:
    """Read on to where this step ends, so that the step can be committed without the stream."""
    if session.stream is not None:
        begun_s = time.perf_counter()
        next_step = session.replica.step + 1
        after = next_step * session.spec.job.global_batch_size
        session.stream_position = session.stream.position_at(after)
        clock.data_s += time.perf_counter() - begun_s


def _hand_over_tail(
    session: Session, share: Share, update: Update, loss_sum: float, weight: float
) -> None:
    """What must be summed besides the last update's gradients."""
    present = [False] * len(session.replica.trained)
    for place, there in zip(update.places, update.gradients.present, strict=True):
        present[place] = there
    session.tail.write(
        loss_sum=loss_sum,
        weight=weight,
        end=bool(session.wants_end),
        used=session.used,
        present=present,
    )
    session.buffers.write(
        session.tail.buffer_elements,
        session.tail.buffer_words,
        share=share.rows / share.global_rows,
        follows=share.counts,
    )


def _apply(
    session: Session, update: Update, totals: Totals, present: Sequence[bool], *, tentative: bool
) -> Applied:
    """Unscale, clip, update: unless gradients are not finite, here or in an update before.

    Averaged gradients are the same bytes on every rank, so all ranks come to the same.
    """
    replica, gradients = session.replica, update.gradients
    rows = session.plan.global_rows(replica.step)
    replica.set_learning_rates(session.spec, session.plan.steps_total)
    if tentative:
        gradients.expose_copies(present)
    else:
        gradients.expose(present)
    factor = rows / totals.weight / replica.scaler.scale if totals.weight else math.nan
    norm = gradients.norm() * factor
    applied = Applied(name=update.name, loss=totals.loss, norm=norm)
    if are_finite([*session.applied, applied]):
        clip_norm = session.spec.train.clip_norm
        if clip_norm:
            factor *= min(1.0, clip_norm / (norm + _CLIP_EPSILON))
        if factor != 1.0:
            gradients.scale(factor)
        if tentative:
            session.undos.append(Undo(replica.part(update.name)))
        else:  # before the update, as forward does in plain torch: its hooks may change them too
            session.engine.apply()
            session.buffers.apply(session.tail.buffer_elements, session.tail.buffer_words)
        replica.update(update.name)
    if tentative:
        gradients.release()
    return applied


def commit(session: Session) -> Committed:
    """Make the last update and advance; then tell the task.

    If gradients of any update are not finite, the step updates nothing, on all ranks alike.
    """
    replica, plan, active = session.replica, session.plan, session.active
    totals = session.tail.totals()
    position, rows = plan.position(replica.step), plan.global_rows(replica.step)
    present = [totals.present[place] for place in active[-1].places]
    applied = [
        *session.applied,
        _apply(session, active[-1], totals, present, tentative=False),
    ]
    finite, lr = are_finite(applied), float(replica.optimizer.param_groups[0]["lr"])
    if finite:
        replica.updated()
    else:
        session.take_back()
        replica.skipped_in_row += 1
    for update in active[:-1]:
        update.gradients.recall()  # no rank reads them any more: all have prepared the step
    replica.scaler.update(finite=finite)
    missing, repeated = totals.used.against(plan.checksum(replica.step), rows)
    seed = plan.order_seed(position.epoch)
    replica.advance(position, rows, seed=seed, missing=missing, repeated=repeated)
    if session.stream is not None:
        replica.stream = session.stream_position
        session.stream.committed(replica.step * session.spec.job.global_batch_size)
    _enter_judgement(session, end=totals.end)
    session.committed()
    loss = sum(one.loss for one in applied)
    norm = math.hypot(*(one.norm for one in applied))
    losses = {f"{one.name}_loss": one.loss for one in applied if one.name}
    session.tell("on_step", {"loss": loss, **losses, "lr": lr, "grad_norm": norm})
    return Committed(
        epoch=position.epoch,
        rows=rows,
        loss=loss,
        lr=lr,
        grad_norm=norm,
        skipped=not finite,
        rows_missing=missing,
        rows_repeated=repeated,
    )


def are_finite(applied: Sequence[Applied]) -> bool:
    """Whether the gradients of all these updates are."""
    return all(math.isfinite(one.norm) for one in applied)


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
