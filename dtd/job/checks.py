"""What fields of a job must be to one another: every check that needs more than one field.

A check never sees a field that is wrong by itself: a `Conflict` names all fields it looked at, and
the parser drops it when one of them already has a problem of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtd.rules import fields_of
from dtd.shown import shown

if TYPE_CHECKING:
    from dtd.job.learning import OptimizerTable, ScheduleTable
    from dtd.job.tables import JobSpec
    from dtd.toml_source import KeyPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Fields that do not go together; the first one is where the user should look."""

    fields: tuple[KeyPath, ...]
    text: str


def conflicts(spec: JobSpec) -> Iterator[Conflict]:
    """Everything in which the fields of a job contradict one another."""
    yield from _length(spec)
    yield from _numbers(spec)
    yield from _encryption(spec)
    yield from _codec(spec)
    yield from _best(spec)
    yield from _without_effect("optimizer", spec.optimizer)
    yield from _without_effect("schedule", spec.schedule)


def _codec(spec: JobSpec) -> Iterator[Conflict]:
    codec, earlier = spec.strategy.codec, spec.sync.wire_dtype
    if earlier and codec not in ("none", earlier):
        yield Conflict(
            fields=(("sync", "wire_dtype"), ("strategy", "codec")),
            text=f'is the earlier name of [strategy] codec, which is "{codec}"; leave it out',
        )


def _length(spec: JobSpec) -> Iterator[Conflict]:
    epochs, steps = ("job", "epochs"), ("job", "steps")
    if spec.job.epochs is None and spec.job.steps is None:
        yield Conflict(fields=(epochs, steps), text="is required, or steps instead")
    if spec.job.epochs is not None and spec.job.steps is not None:
        yield Conflict(fields=(steps, epochs), text="stands beside epochs; give one of the two")
    if spec.job.steps is not None and 0 < spec.job.steps <= spec.schedule.warmup_steps:
        yield Conflict(
            fields=(("schedule", "warmup_steps"), steps),
            text=f"must be below the job's {spec.job.steps} steps,"
            f" not {spec.schedule.warmup_steps}",
        )


def _numbers(spec: JobSpec) -> Iterator[Conflict]:
    if spec.job.global_batch_size < spec.train.grad_accumulation:
        yield Conflict(
            fields=(("train", "grad_accumulation"), ("job", "global_batch_size")),
            text=f"cannot cut {spec.job.global_batch_size} rows"
            f" into {spec.train.grad_accumulation} pieces",
        )
    sgd = spec.optimizer.name == "sgd"
    if sgd and spec.optimizer.nesterov and spec.optimizer.momentum == 0:
        yield Conflict(
            fields=(("optimizer", "nesterov"), ("optimizer", "momentum"), ("optimizer", "name")),
            text="needs momentum above 0",
        )
    if spec.schedule.name == "step" and spec.schedule.step_every == 0:
        yield Conflict(
            fields=(("schedule", "step_every"), ("schedule", "name")),
            text='is required with name = "step"',
        )
    if spec.schedule.min_lr > spec.optimizer.lr:
        yield Conflict(
            fields=(("schedule", "min_lr"), ("optimizer", "lr")),
            text=f"must be at most [optimizer] lr = {spec.optimizer.lr},"
            f" not {spec.schedule.min_lr}",
        )
    if spec.elastic.min_workers > spec.elastic.max_workers:
        yield Conflict(
            fields=(("elastic", "min_workers"), ("elastic", "max_workers")),
            text=f"must be at most max_workers = {spec.elastic.max_workers},"
            f" not {spec.elastic.min_workers}",
        )


def _encryption(spec: JobSpec) -> Iterator[Conflict]:
    sync = spec.sync
    if sync.transport != "ring" and sync.encryption == "tls" and not sync.plain_gradients:
        yield Conflict(
            fields=(("sync", "transport"), ("sync", "encryption"), ("sync", "plain_gradients")),
            text=f'encrypts nothing: with encryption = "tls" use "ring" instead of'
            f' "{sync.transport}", or say plain_gradients = true',
        )


def _best(spec: JobSpec) -> Iterator[Conflict]:
    if spec.checkpoint.best_mode and not spec.checkpoint.best_metric:
        yield Conflict(
            fields=(("checkpoint", "best_mode"), ("checkpoint", "best_metric")),
            text="has no effect without best_metric",
        )


def _without_effect(table: str, values: OptimizerTable | ScheduleTable) -> Iterator[Conflict]:
    kind: type = type(values)
    for info in fields_of(kind).values():
        value = getattr(values, info.name)
        if info.rule.only_for and values.name not in info.rule.only_for and value != info.default:
            yield Conflict(
                fields=((table, info.name), (table, "name")),
                text=f"has no effect with name = {shown(values.name)},"
                f" only with {' or '.join(map(shown, info.rule.only_for))}",
            )
