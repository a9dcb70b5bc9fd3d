"""A model and its optimizer divided among ranks by torch: by ZeroRedundancyOptimizer, or by FSDP2.

The process group exists already (`scripts.benchrun.torch_side.join_gloo`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from dtd.job import OptimizerTable
from dtd.train.optimizer import build_optimizer
from scripts.benchrun.torch_divisions import FSDP, ZERO

_ADAM: Final = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def divided(
    model: nn.Module, table: OptimizerTable, *, how: str, bucket_mib: int
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Divide a model's state among the ranks of the default process group.

    Args:
        model: whole, equal on all ranks; FSDP2 changes it in place.
        table: an Adam.
        how: as `scripts.benchrun.torch_divisions` says.
        bucket_mib: of DDP's buckets of gradients.
    """
    if how == ZERO:
        return _zero(model, table, bucket_mib)
    for unit in (*_units(model), model):
        fully_shard(unit, reshard_after_forward=how == FSDP)
        # Gloo has sums, but no means.
        cast(FSDPModule, unit).set_force_sum_reduction_for_comms(True)
    return model, build_optimizer(table, [*model.parameters()])


def _zero(
    model: nn.Module, table: OptimizerTable, bucket_mib: int
) -> tuple[nn.Module, torch.optim.Optimizer]:
    ddp = DistributedDataParallel(
        model,
        bucket_cap_mb=bucket_mib,
        gradient_as_bucket_view=True,
        static_graph=True,
        forward_sync_buffers=False,
    )
    options: dict[str, Any] = {
        "lr": table.lr,
        "betas": (table.beta1, table.beta2),
        "eps": table.eps,
        "weight_decay": table.weight_decay,
        "fused": True,
    }
    optimizer = ZeroRedundancyOptimizer(
        ddp.parameters(),
        optimizer_class=_ADAM[table.name],
        parameters_as_bucket_view=True,
        **options,
    )
    return ddp, optimizer


def _units(model: nn.Module) -> Sequence[nn.Module]:
    """Return the modules that are gathered at a time: the blocks of a stack, or its children."""
    return [child for child in model.children() if any(True for _ in child.parameters())]
