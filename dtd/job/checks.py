"""The checks of a job that need more than one field.

A check never sees a field that is wrong by itself: a `Conflict` names all fields it looked at, and
the parser drops it when one of them already has a problem of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dtd.job.strategy_table import LOCAL, SHARDED, SPARSE
from dtd.job.tables import least_and_most
from dtd.rules import fields_of
from dtd.text.names import LAUNCHED
from dtd.text.shown import shown

if TYPE_CHECKING:
    from dtd.job.strategy_table import StrategyTable
    from dtd.job.tables import JobSpec
    from dtd.text.toml_source import KeyPath

_ROUNDING: Final = ("none", "bfloat16", "float16")
"""Codecs that round sums and keep nothing back for later steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Fields that do not go together; the first one is where the user should look."""

    fields: tuple[KeyPath, ...]
    text: str


def conflicts(spec: JobSpec) -> Iterator[Conflict]:
    """Everything in which the fields of a job contradict one another."""
    yield from _length(spec)
    yield from _numbers(spec)
    yield from _shares(spec)
    yield from _by_hand(spec)
    yield from _encryption(spec)
    yield from _sparse(spec)
    yield from _best(spec)
    for name in ("optimizer", "schedule", "strategy"):
        yield from _without_effect(spec, name)
    yield from _owned_updates(spec)
    yield from _local_steps(spec)
    yield from _sharded(spec)


def _without_effect(spec: JobSpec, name: str) -> Iterator[Conflict]:
    """Fields of a table that belong to a choice which the job has not made."""
    table = getattr(spec, name)
    keys = ("name", "codec") if name == "strategy" else ("name",)
    kind: type = type(table)
    for info in fields_of(kind).values():
        only_for, value = set(info.rule.only_for), getattr(table, info.name)
        if only_for and value != info.default and not only_for & {getattr(table, k) for k in keys}:
            # Of a strategy, the choice is its name or its codec.
            key = keys[0] if only_for & {*LOCAL, *SHARDED} else keys[-1]
            yield Conflict(
                fields=tuple((name, one) for one in (info.name, *keys)),
                text=f"has no effect with {key} = {shown(getattr(table, key))},"
                f" only with {' or '.join(map(shown, info.rule.only_for))}",
            )


def _sparse(spec: JobSpec) -> Iterator[Conflict]:
    codec, optimizer, local_from = ("strategy", "codec"), spec.optimizer, spec.strategy.local_from
    if spec.strategy.codec in SPARSE and spec.train.clip_norm > 0 and local_from != 0:
        yield Conflict(
            fields=(("train", "clip_norm"), codec),
            text="would cut what has added up over many steps with codec ="
            f" {shown(spec.strategy.codec)}; remove it, or use another codec",
        )
    if spec.strategy.codec in SPARSE and spec.strategy.momentum > 0 and local_from is not None:
        yield Conflict(
            fields=(("strategy", "momentum"), ("strategy", "name"), codec),
            text=f"applies to gradients, and name = {shown(spec.strategy.name)} exchanges changes "
            "of weights; remove it",
        )
    own = "momentum" if optimizer.name == "sgd" else "beta1"
    if spec.strategy.codec in SPARSE and spec.strategy.momentum > 0 and getattr(optimizer, own) > 0:
        yield Conflict(
            fields=(("strategy", "momentum"), codec, ("optimizer", own), ("optimizer", "name")),
            text=f"replaces the optimizer's momentum: set [optimizer] {own} = 0, or remove it",
        )


def _length(spec: JobSpec) -> Iterator[Conflict]:
    epochs, steps = ("job", "epochs"), ("job", "steps")
    if spec.job.epochs is None and spec.job.steps is None:
        yield Conflict(fields=(epochs, steps), text="is required unless steps is given")
    if spec.job.epochs is not None and spec.job.steps is not None:
        yield Conflict(
            fields=(steps, epochs), text="cannot be used together with epochs; give one of the two"
        )
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
    elif spec.elastic.workers:
        yield from _workers(spec)


def _workers(spec: JobSpec) -> Iterator[Conflict]:
    """Check `elastic.workers` of a job that does not take all."""
    elastic, key = spec.elastic, ("elastic", "workers")
    least, most = least_and_most(elastic.workers)
    if elastic.by_hand:
        yield Conflict(
            fields=(key, ("elastic", "by_hand")),
            text="must be 0 for a job with by_hand = true, which is given no workers",
        )
    elif least > most:
        yield Conflict(
            fields=(key,), text=f"must begin with the least, not {shown(elastic.workers)}"
        )
    elif not elastic.min_workers <= least <= most <= elastic.max_workers:
        yield Conflict(
            fields=(key, ("elastic", "min_workers"), ("elastic", "max_workers")),
            text=f"must be 0, or from min_workers = {elastic.min_workers} to"
            f" max_workers = {elastic.max_workers}, not {shown(elastic.workers)}",
        )
    elif least < most and spec.job.task.endswith(LAUNCHED):
        yield Conflict(
            fields=(key, ("job", "task")),
            text="must be one number for a script that does not call dtd.join, which would begin"
            f" again whenever a worker comes or goes; not {shown(elastic.workers)}",
        )


def _shares(spec: JobSpec) -> Iterator[Conflict]:
    """Check that a division of rows by speed can take effect."""
    shares, rows = spec.elastic.shares, spec.job.global_batch_size
    key, batch = ("elastic", "shares"), ("job", "global_batch_size")
    if shares != "equal" and spec.job.task.endswith(LAUNCHED):
        yield Conflict(
            fields=(key, ("job", "task")),
            text="has no effect for a script that does not call dtd.join, which divides its rows"
            " itself; remove it",
        )
    if not isinstance(shares, dict):
        return
    least = 2 * spec.train.grad_accumulation
    name, weight = min(shares.items(), key=lambda one: one[1])
    own = int(rows * weight / sum(shares.values()))
    if own < least:
        yield Conflict(
            fields=(key, batch, ("train", "grad_accumulation")),
            text=f"leaves {shown(name)} {own} of {rows} rows, and a worker needs {least} (two in"
            " each micro-batch); raise its weight or [job] global_batch_size",
        )


def _by_hand(spec: JobSpec) -> Iterator[Conflict]:
    if spec.job.requirements and spec.elastic.by_hand:
        yield Conflict(
            fields=(("job", "requirements"), ("elastic", "by_hand")),
            text="cannot be used with by_hand = true: such a process has its own environment; start"
            " it with `dtdctl run`, or install the packages on its host",
        )
    if spec.data and spec.elastic.by_hand:
        yield Conflict(
            fields=(("data",), ("elastic", "by_hand")),
            text="cannot be used with by_hand = true: such a process opens its data before it"
            " joins; start it with `dtdctl run`, or give it the path on its host",
        )


def _encryption(spec: JobSpec) -> Iterator[Conflict]:
    sync, task = spec.sync, spec.job.task
    if task.endswith(LAUNCHED) and sync.encryption == "tls" and not sync.plain_gradients:
        yield Conflict(
            fields=(("sync", "encryption"), ("job", "task"), ("sync", "plain_gradients")),
            text='cannot be "tls" for a script that does not call dtd.join, whose processes connect'
            " by themselves; remove it, or say plain_gradients = true",
        )
    if sync.transport != "ring" and sync.encryption == "tls" and not sync.plain_gradients:
        yield Conflict(
            fields=(("sync", "transport"), ("sync", "encryption"), ("sync", "plain_gradients")),
            text=f'does not encrypt: with encryption = "tls" use "ring" instead of'
            f' "{sync.transport}", or say plain_gradients = true',
        )


def _owned_updates(spec: JobSpec) -> Iterator[Conflict]:
    if spec.strategy.copies_updates and spec.sync.transport != "ring":
        yield Conflict(
            fields=(("sync", "transport"), ("strategy", "update")),
            text=f'must be "ring" with [strategy] update = "owner", not'
            f" {shown(spec.sync.transport)}",
        )


def _local_steps(spec: JobSpec) -> Iterator[Conflict]:
    strategy, name = spec.strategy, ("strategy", "name")
    if strategy.local_from is None:
        return
    inner, most = ("strategy", "inner_steps"), ("strategy", "inner_steps_max")
    doubles = ("strategy", "inner_steps_double_every")
    if spec.job.steps is not None and 0 < spec.job.steps < strategy.inner_steps:
        yield Conflict(
            fields=(inner, ("job", "steps"), name),
            text=f"must be at most the job's {spec.job.steps} steps, not {strategy.inner_steps}",
        )
    if strategy.name == "streaming_diloco":
        yield from _fragments(strategy)
    if strategy.inner_steps_double_every and strategy.inner_steps_max <= strategy.inner_steps:
        yield Conflict(
            fields=(most, inner, doubles),
            text=f"must be above inner_steps = {strategy.inner_steps} where rounds grow",
        )
    if strategy.inner_steps_max and not strategy.inner_steps_double_every:
        yield Conflict(
            fields=(most, doubles), text="has no effect without inner_steps_double_every"
        )
    if spec.train.precision == "float16":
        yield Conflict(
            fields=(("train", "precision"), name),
            text=f"cannot be float16 with [strategy] name = {shown(strategy.name)}: a loss scale"
            ' that is too large would undo a whole round; use "bfloat16"',
        )


def _fragments(strategy: StrategyTable) -> Iterator[Conflict]:
    """Each fragment's turn comes once in `inner_steps` steps."""
    name, inner = ("strategy", "name"), ("strategy", "inner_steps")
    if strategy.inner_steps % strategy.fragments:
        yield Conflict(
            fields=(inner, ("strategy", "fragments"), name),
            text=f"must be a multiple of fragments = {strategy.fragments},"
            f" not {strategy.inner_steps}",
        )
    if strategy.inner_steps_double_every:
        yield Conflict(
            fields=(("strategy", "inner_steps_double_every"), name),
            text='has no effect with name = "streaming_diloco", whose rounds keep their length',
        )


def _sharded(spec: JobSpec) -> Iterator[Conflict]:
    strategy, name = spec.strategy, ("strategy", "name")
    if not strategy.sharded:
        return
    said = f"with [strategy] name = {shown(strategy.name)}"
    if spec.strategy.codec not in _ROUNDING:
        yield Conflict(
            fields=(("strategy", "codec"), name),
            text=f"cannot be {shown(spec.strategy.codec)} {said}; use"
            f" {', '.join(map(shown, _ROUNDING[:-1]))} or {shown(_ROUNDING[-1])}",
        )
    if spec.sync.transport != "ring":
        yield Conflict(
            fields=(("sync", "transport"), name),
            text=f'must be "ring" {said}, not {shown(spec.sync.transport)}',
        )
    if spec.train.ema_decay > 0:
        yield Conflict(
            fields=(("train", "ema_decay"), name),
            text=f'cannot be used {said}; remove it, or use name = "replicated"',
        )
    if strategy.owners == "workers" and strategy.mirrors >= spec.elastic.max_workers:
        yield Conflict(
            fields=(("strategy", "mirrors"), ("elastic", "max_workers"), name),
            text=f"must be below [elastic] max_workers = {spec.elastic.max_workers},"
            f" not {strategy.mirrors}: each copy is on a worker of its own",
        )
    yield from _sharded_checkpoints(spec, said)


def _sharded_checkpoints(spec: JobSpec, said: str) -> Iterator[Conflict]:
    name = ("strategy", "name")
    if spec.checkpoint.directory:
        yield Conflict(
            fields=(("checkpoint", "directory"), name),
            text=f"cannot be used {said}: each worker writes its own part, and workers that share"
            " a directory would replace each other's; remove it, and the parts go to the workers'"
            " state directories",
        )
    if spec.checkpoint.copies > 1:
        yield Conflict(
            fields=(("checkpoint", "copies"), name, ("strategy", "mirrors")),
            text=f"has no effect {said}: each part is written by its owner and its mirrors,"
            f" {spec.strategy.mirrors + 1} in all; raise [strategy] mirrors for more",
        )


def _best(spec: JobSpec) -> Iterator[Conflict]:
    if spec.checkpoint.best_mode and not spec.checkpoint.best_metric:
        yield Conflict(
            fields=(("checkpoint", "best_mode"), ("checkpoint", "best_metric")),
            text="has no effect without best_metric",
        )
