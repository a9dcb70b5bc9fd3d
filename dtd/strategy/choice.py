"""Selects the strategy and the codec that a job requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import nn

from dtd.errors import TaskError
from dtd.job import JobSpec
from dtd.strategy.api import Part, Strategy
from dtd.strategy.codec.api import Codec
from dtd.strategy.codec.int8 import Int8
from dtd.strategy.codec.narrow import bfloat16, float16
from dtd.strategy.codec.powersgd import PowerSGD
from dtd.strategy.codec.sign import Sign
from dtd.strategy.codec.sparse import RandomK, TopK
from dtd.strategy.diloco import Nesterov, StreamingDiloco
from dtd.strategy.local_sgd import Average, Changes, LocalSgd, Outer, PostLocal
from dtd.strategy.replicated import Replicated
from dtd.strategy.scalars import StepScalars
from dtd.strategy.sharded.gradients import Passes
from dtd.strategy.sharded.strategy import Sharded

CODECS: Final[Mapping[str, Callable[[JobSpec], Codec] | None]] = {
    "none": None,
    "bfloat16": lambda _: bfloat16(),
    "float16": lambda _: float16(),
    "powersgd": lambda spec: PowerSGD(
        rank=spec.strategy.rank,
        start_step=spec.strategy.start_step,
        warm_start=spec.strategy.warm_start,
        error_feedback=spec.strategy.error_feedback,
        min_compression=spec.strategy.min_compression,
        seed=spec.job.seed,
    ),
    "int8": lambda _: Int8(),
    "sign": lambda _: Sign(),
    "top_k": lambda spec: TopK(
        density=spec.strategy.density,
        momentum=spec.strategy.momentum,
        warmup_steps=spec.strategy.density_warmup_steps,
    ),
    "random_k": lambda spec: RandomK(
        density=spec.strategy.density,
        momentum=spec.strategy.momentum,
        warmup_steps=spec.strategy.density_warmup_steps,
        seed=spec.job.seed,
    ),
}
"""Functions that create the codec of one update for a job; None sends gradients unchanged."""

STRATEGY_RISKS: Final[Mapping[str, str]] = {
    "replicated": Replicated.risk,
    "local_sgd": Average.risk,
    "diloco": Nesterov.risk,
    "streaming_diloco": StreamingDiloco.risk,
    "sharded": Sharded.risk,
}
"""Risk of each strategy for a job, independent of the codec, as a phrase; empty if none."""

OVERLAPPING: Final = frozenset({"streaming_diloco"})
"""Strategies whose changes are exchanged during the next local steps."""

_REMEDIES: Final[Mapping[str, str]] = {
    "powersgd": "lower strategy.rank or strategy.min_compression, so that matrices get smaller, or "
}
_MIB = 1 << 20


def build_strategy(
    spec: JobSpec,
    parts: Sequence[Part],
    device: torch.device,
    scalars: StepScalars,
    *,
    model: nn.Module,
    passes: Passes,
) -> Strategy:
    """Build the job's strategy.

    Args:
        spec: the job.
        parts: its optimizers' parameters, in the order of their updates.
        device: the model's device.
        scalars: the last bucket of a step.
        model: the model that the parameters belong to.
        passes: the most micro-batches of any rank in a step, as `Sharded` takes it.

    Raises:
        TaskError: the codec applies to none of the parameters, or the task has several optimizers
            but the strategy supports only one.
    """
    codec = CODECS[spec.codec]
    coded = partial(codec, spec) if codec is not None else None
    if spec.strategy.name == "sharded":
        return _sharded(spec, parts, device, scalars, coded, model, passes)
    replicated = partial(
        Replicated,
        parts,
        device,
        scalars,
        codec=coded,
        bucket_bytes=int(spec.sync.bucket_mib * _MIB),
        first_bucket_bytes=int(spec.sync.first_bucket_mib * _MIB),
    )
    local_from = spec.strategy.local_from
    if local_from is None:
        return _fitting(replicated(), spec)
    local = _fitting(_local_sgd(spec, parts, device, scalars, coded), spec)
    return PostLocal(replicated, local, start_step=local_from) if local_from else local


def _sharded(
    spec: JobSpec,
    parts: Sequence[Part],
    device: torch.device,
    scalars: StepScalars,
    codec: Callable[[], Codec] | None,
    model: nn.Module,
    passes: Passes,
) -> Sharded:
    _check_one_optimizer(spec, parts)
    return Sharded(
        parts[0],
        model,
        device,
        scalars,
        stage=spec.strategy.stage,
        mirrors=spec.strategy.mirrors,
        codec=codec() if codec is not None else None,
        passes=passes,
        bucket_bytes=int(spec.sync.bucket_mib * _MIB),
        first_bucket_bytes=int(spec.sync.first_bucket_mib * _MIB),
    )


def _check_one_optimizer(spec: JobSpec, parts: Sequence[Part]) -> None:
    if len(parts) > 1:
        raise TaskError(
            f"[strategy] name: {spec.strategy.name} takes one optimizer, and build_optimizers() of"
            f" the task returned {len(parts)}",
            remedy='use name = "replicated", or one optimizer with several parameter groups',
        )


def _local_sgd(
    spec: JobSpec,
    parts: Sequence[Part],
    device: torch.device,
    scalars: StepScalars,
    codec: Callable[[], Codec] | None,
) -> LocalSgd | StreamingDiloco:
    table = spec.strategy
    _check_one_optimizer(spec, parts)
    if table.name == "streaming_diloco":
        return _streaming(spec, parts[0], device, scalars, codec)
    outer: Outer = Average()
    if table.name == "diloco":
        outer = Nesterov(parts[0].named, lr=table.outer_lr, momentum=table.outer_momentum)
    changes = Changes(
        parts[0],
        device,
        codec() if codec is not None else None,
        bucket_bytes=int(spec.sync.bucket_mib * _MIB),
    )
    return LocalSgd(parts[0], scalars, outer=outer, changes=changes)


def _streaming(
    spec: JobSpec,
    part: Part,
    device: torch.device,
    scalars: StepScalars,
    codec: Callable[[], Codec] | None,
) -> StreamingDiloco:
    table = spec.strategy
    if len(part.named) < table.fragments:
        raise TaskError(
            f"[strategy] fragments: {table.fragments} are more than the model's"
            f" {len(part.named)} trained parameters",
            remedy=f"lower it to {len(part.named)} at most",
        )
    first, steps = table.local_start_step, table.round_steps
    return StreamingDiloco(
        part,
        device,
        scalars,
        fragments=table.fragments,
        turn=lambda step: (step - first) // steps,
        mixing=table.mixing,
        lr=table.outer_lr,
        momentum=table.outer_momentum,
        codec=codec,
        bucket_bytes=int(spec.sync.bucket_mib * _MIB),
    )


def _fitting(strategy: Replicated | LocalSgd | StreamingDiloco, spec: JobSpec) -> Strategy:
    """Return the strategy if its codec applies to some parameter; otherwise raise TaskError."""
    if not strategy.fits:
        strategy.close()
        raise TaskError(
            f'strategy.codec = "{spec.codec}" finds nothing to compress among the model\'s'
            " parameters",
            remedy=_REMEDIES.get(spec.codec, "") + 'use another strategy.codec, such as "none"',
        )
    return strategy
