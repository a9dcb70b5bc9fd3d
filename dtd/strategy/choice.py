"""Which strategy and which codec a job asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

from dtd.job import JobSpec
from dtd.strategy.api import Part, Strategy
from dtd.strategy.codec.api import Codec
from dtd.strategy.codec.bfloat16 import bfloat16
from dtd.strategy.codec.float16 import float16
from dtd.strategy.replicated import Replicated
from dtd.strategy.scalars import StepScalars

CODECS: Final[Mapping[str, Callable[[], Codec] | None]] = {
    "none": None,
    "bfloat16": bfloat16,
    "float16": float16,
}
_MIB = 1 << 20


def build_strategy(
    spec: JobSpec, parts: Sequence[Part], device: torch.device, scalars: StepScalars
) -> Strategy:
    """The job's strategy.

    Args:
        spec: the job.
        parts: its optimizers' parameters, in the order of their updates.
        device: where the model is.
        scalars: the last bucket of a step.
    """
    return Replicated(
        parts,
        device,
        scalars,
        codec=CODECS[spec.codec],
        bucket_bytes=int(spec.sync.bucket_mib * _MIB),
        first_bucket_bytes=int(spec.sync.first_bucket_mib * _MIB),
    )
