"""The models, batches and links of the training benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dtd.job import parse_job, to_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Something to train.

    Attributes:
        what: for readers.
        model: a key of `scripts.benchrun.tasks.MODELS`.
        options: its keyword arguments.
        rows: the global batch.
        block_steps: steps that a side takes in its turn; the first of them does not count.
    """

    what: str
    model: str
    rows: int
    block_steps: int
    options: Mapping[str, Any] = field(default_factory=dict)


WORKLOADS: Final = {
    "resnet18-16": Workload(
        what="ResNet-18 for 32x32 images, 11.2 M parameters, 16 rows",
        model="images",
        rows=16,
        block_steps=21,
    ),
    "resnet18-64": Workload(
        what="ResNet-18 for 32x32 images, 11.2 M parameters, 64 rows",
        model="images",
        rows=64,
        block_steps=8,
    ),
    "chargpt-16": Workload(
        what="character transformer, 10.7 M parameters, 16 rows of 64 characters",
        model="text",
        rows=16,
        block_steps=21,
    ),
    "mlp-16": Workload(
        what="eight linear layers, 11 M parameters, 16 rows: nearly all communication",
        model="layers",
        rows=16,
        block_steps=41,
        options={"parameters": 11_000_000, "layers": 8, "rows": 2048},
    ),
}
QUICK: Final = {
    "mlp-quick": Workload(
        what="four linear layers, 0.1 M parameters, 16 rows: to see that it works",
        model="layers",
        rows=16,
        block_steps=4,
        options={"parameters": 100_000, "layers": 4, "rows": 256},
    ),
}
LOOPBACK: Final = "loopback"
LINKS: Final = (LOOPBACK, "1gbit", "100mbit")
"""All on one host, or a host each behind a link of that rate."""

_NEVER: Final = 1_000_000
_PATIENCE_S: Final = 3600
_TASK: Final = "scripts.benchrun.tasks:Gated"


def job_of(
    workload: Workload, *, steps: int, gates: str, holds: list[int], wire_dtype: str = ""
) -> dict[str, Any]:
    """The job that trains it, defaults otherwise; nothing but training happens before its end."""
    text = f"""
        job.name = "bench"
        job.task = "{_TASK}"
        job.steps = {steps}
        job.global_batch_size = {workload.rows}
        optimizer.lr = 0.001
        optimizer.momentum = 0.9
        sync.wire_dtype = "{wire_dtype}"
        train.eval_every = {_NEVER}
        checkpoint.every_steps = {_NEVER}
        elastic.settle_s = 0.0
        elastic.stall_timeout_s = {_PATIENCE_S}
        task.model = "{workload.model}"
    """
    spec = to_mapping(parse_job(text, source="benchmark"))
    spec["task"] |= {"options": dict(workload.options), "gates": gates, "holds": holds}
    return spec
