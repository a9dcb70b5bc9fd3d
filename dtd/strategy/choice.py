"""Selects the strategy and the codec that a job requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from dtd.strategy.diloco import StreamingDiloco
from dtd.strategy.local_sgd import Changes, LocalSgd, Nesterov, PostLocal
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
    "local_sgd": LocalSgd.risk,
    "diloco": Nesterov.risk,
    "streaming_diloco": StreamingDiloco.risk,
    "sharded": Sharded.risk,
}
"""Risk of each strategy for a job, independent of the codec, as a phrase; empty if none."""

OVERLAPPING: Final = frozenset({"streaming_diloco"})
"""Strategies whose changes are exchanged during the next local steps."""

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The arguments of every strategy's constructor, for `build_strategy`."""

    spec: JobSpec
    parts: Sequence[Part]
    device: torch.device
    scalars: StepScalars
    model: nn.Module
    passes: Passes

    @property
    def bucket_bytes(self) -> int:
        return int(self.spec.sync.bucket_mib * _MIB)

    @property
    def first_bucket_bytes(self) -> int:
        return int(self.spec.sync.first_bucket_mib * _MIB)

    @property
    def makes_codec(self) -> Callable[[], Codec] | None:
        """Creates the codec of one update, if the job has one."""
        codec = CODECS[self.spec.strategy.codec]
        return partial(codec, self.spec) if codec is not None else None

    @property
    def codec(self) -> Codec | None:
        return self.makes_codec() if self.makes_codec is not None else None

    @property
    def part(self) -> Part:
        """The parameters of the only optimizer."""
        if len(self.parts) > 1:
            raise TaskError(
                f"[strategy] name: {self.spec.strategy.name} takes one optimizer, and"
                f" build_optimizers() of the task returned {len(self.parts)}",
                remedy='use name = "replicated", or one optimizer with several parameter groups',
            )
        return self.parts[0]


def _replicated(of: _Request) -> Replicated:
    return Replicated(
        of.parts,
        of.device,
        of.scalars,
        codec=of.makes_codec,
        bucket_bytes=of.bucket_bytes,
        first_bucket_bytes=of.first_bucket_bytes,
    )


def _sharded(of: _Request) -> Sharded:
    return Sharded(
        of.part,
        of.model,
        of.device,
        of.scalars,
        stage=of.spec.strategy.stage,
        mirrors=of.spec.strategy.mirrors,
        codec=of.codec,
        passes=of.passes,
        bucket_bytes=of.bucket_bytes,
        first_bucket_bytes=of.first_bucket_bytes,
    )


def _local_sgd(of: _Request, outer: Nesterov | None = None) -> LocalSgd:
    changes = Changes(of.part, of.device, of.codec, bucket_bytes=of.bucket_bytes)
    return LocalSgd(of.part, of.scalars, outer=outer, changes=changes)


def _diloco(of: _Request) -> LocalSgd:
    table = of.spec.strategy
    outer = Nesterov(of.part.named, lr=table.outer_lr, momentum=table.outer_momentum)
    return _local_sgd(of, outer)


def _streaming_diloco(of: _Request) -> StreamingDiloco:
    table = of.spec.strategy
    if len(of.part.named) < table.fragments:
        raise TaskError(
            f"[strategy] fragments: {table.fragments} are more than the model's"
            f" {len(of.part.named)} trained parameters",
            remedy=f"lower it to {len(of.part.named)} at most",
        )
    first, steps = table.local_start_step, table.round_steps
    return StreamingDiloco(
        of.part,
        of.device,
        of.scalars,
        fragments=table.fragments,
        turn=lambda step: (step - first) // steps,
        mixing=table.mixing,
        lr=table.outer_lr,
        momentum=table.outer_momentum,
        codec=of.makes_codec,
        bucket_bytes=of.bucket_bytes,
    )


_STRATEGIES: Final[Mapping[str, Callable[[_Request], Strategy]]] = {
    "replicated": _replicated,
    "local_sgd": _local_sgd,
    "diloco": _diloco,
    "streaming_diloco": _streaming_diloco,
    "sharded": _sharded,
}
_REMEDIES: Final[Mapping[str, str]] = {
    "powersgd": "lower strategy.rank or strategy.min_compression, so that matrices get smaller, or "
}


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

    Raises:
        TaskError: the codec applies to none of the parameters, or the task has several optimizers
            but the strategy supports only one.
    """
    request = _Request(
        spec=spec, parts=parts, device=device, scalars=scalars, model=model, passes=passes
    )
    strategy = _STRATEGIES[spec.strategy.name](request)
    if not strategy.fits:
        strategy.close()
        raise TaskError(
            f'strategy.codec = "{spec.strategy.codec}" finds nothing to compress among the model\'s'
            " parameters",
            remedy=_REMEDIES.get(spec.strategy.codec, "")
            + 'use another strategy.codec, such as "none"',
        )
    if not spec.strategy.local_from:
        return strategy
    early = partial(_replicated, request)
    return PostLocal(early, strategy, start_step=spec.strategy.local_from)
