"""The models, batches and links of the training benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dtd.job import parse_job, to_mapping
from dtd.job.strategy_table import SHARDED

ZERO: Final = "zero"
FSDP: Final = "fsdp"
FSDP_KEEPS: Final = "fsdp-keeps"
"""`FSDP` whose parameters stay gathered between forward and backward."""
LOOPBACK: Final = "loopback"
GIGABIT: Final = "1gbit"
LINKS: Final = (LOOPBACK, GIGABIT, "100mbit")
"""All on one host, or a host each behind a link of that rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Something to train.

    Attributes:
        what: for readers.
        model: a key of `scripts.benchrun.tasks.MODELS`.
        options: its keyword arguments.
        rows: the global batch.
        block_steps: steps that a side takes in its turn; the first of them does not count.
        links: over which it is measured unless others are asked for.
        worlds: by how many workers, likewise.
        optimizer: its `[optimizer]` table; empty: SGD with momentum.
    """

    what: str
    model: str
    rows: int
    block_steps: int
    options: Mapping[str, Any] = field(default_factory=dict)
    links: Sequence[str] = LINKS
    worlds: Sequence[int] = (1, 2, 4)
    optimizer: Mapping[str, Any] = field(default_factory=dict)


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
    "paced-16": Workload(
        what="twenty linear layers, 11 M parameters, that wait 5 ms in forward and 10 ms in"
        " backward each, as for an accelerator",
        model="layers",
        rows=16,
        block_steps=7,
        options={"parameters": 11_000_000, "layers": 20, "rows": 2048, "compute_ms": 300.0},
        links=(GIGABIT,),
        worlds=(2, 4, 8),
    ),
    "paced-small": Workload(
        what="twenty linear layers, 2.2 M parameters, that wait 5 ms in forward and 10 ms in"
        " backward each, as for an accelerator",
        model="layers",
        rows=16,
        block_steps=7,
        options={"parameters": 2_200_000, "layers": 20, "rows": 2048, "compute_ms": 300.0},
        links=("100mbit",),
        worlds=(4,),
    ),
}
PACED_RESNET: Final = Workload(
    what="parameters of ResNet-18, 11.2 M, and 16 rows; compute only waits, 100 ms in forward and"
    " 200 ms in backward, as for an accelerator",
    model="paced",
    rows=16,
    block_steps=7,
    options={"compute_ms": 300.0},
    links=("100mbit", GIGABIT),
    worlds=(2, 4),
)
QUICK: Final = {
    "mlp-quick": Workload(
        what="four linear layers, 0.1 M parameters, 16 rows: to see that it works",
        model="layers",
        rows=16,
        block_steps=4,
        options={"parameters": 100_000, "layers": 4, "rows": 256},
    ),
}

_NEVER: Final = 1_000_000
_PATIENCE_S: Final = 3600
_TASK: Final = "scripts.benchrun.tasks:Gated"


def job_of(
    workload: Workload,
    *,
    steps: int,
    gates: str,
    holds: list[int],
    strategy: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The job that trains it, defaults otherwise; nothing but training happens before its end.

    Args:
        workload: model, rows and optimizer.
        steps: of the whole job.
        gates: see `scripts.benchrun.tasks.Gated`.
        holds: likewise.
        strategy: its `[strategy]` table; a momentum there takes the place of the optimizer's.
    """
    if strategy and strategy.get("name") in SHARDED:  # a pass before training shows uses
        holds = [steps_before + 1 for steps_before in holds]
    plain = bool(workload.optimizer) or bool(strategy and "momentum" in strategy)
    momentum = 0.0 if plain else 0.9
    text = f"""
        job.name = "bench"
        job.task = "{_TASK}"
        job.steps = {steps}
        job.global_batch_size = {workload.rows}
        optimizer.lr = 0.001
        optimizer.momentum = {momentum}
        train.eval_every = {_NEVER}
        checkpoint.every_steps = {_NEVER}
        elastic.settle_s = 0.0
        elastic.stall_timeout_s = {_PATIENCE_S}
        task.model = "{workload.model}"
    """
    spec = to_mapping(parse_job(text, source="benchmark"))
    spec["strategy"] |= strategy or {}
    spec["optimizer"] |= workload.optimizer
    spec["task"] |= {"options": dict(workload.options), "gates": gates, "holds": holds}
    return spec
