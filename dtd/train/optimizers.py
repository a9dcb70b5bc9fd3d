"""The optimizer that a job asks for, or the task's own.

Adam on a CPU is torch's fused kernel: one pass over parameter, gradient and state in a sixth of the
time.  It goes through memory as it lies and does not look whether all lie alike, and gradients lie
as in a contiguous parameter; so other models (channels_last, bfloat16) get `foreach`, a handful of
kernels over all parameters, as GPUs do.  So does SGD, whose fused kernel wants either all
parameters to have momentum already, or none.
Learning rates are set before every update from the schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dtd.errors import TaskError
from dtd.job import OptimizerTable


def build_optimizer(
    table: OptimizerTable, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer of the job's [optimizer] table."""
    params = list(parameters)
    if table.name == "sgd":
        return torch.optim.SGD(
            params,
            lr=table.lr,
            momentum=table.momentum,
            nesterov=table.nesterov,
            weight_decay=table.weight_decay,
            foreach=True,
        )
    fused = all(_may_be_fused(parameter) for parameter in params)
    kind = torch.optim.Adam if table.name == "adam" else torch.optim.AdamW
    return kind(
        params,
        lr=table.lr,
        betas=(table.beta1, table.beta2),
        eps=table.eps,
        weight_decay=table.weight_decay,
        fused=fused,
        foreach=not fused,
    )


def _may_be_fused(parameter: nn.Parameter) -> bool:
    wide = parameter.dtype in (torch.float32, torch.float64)
    return wide and parameter.device.type == "cpu" and parameter.is_contiguous()


def optimizer_of(
    task: Any, table: OptimizerTable, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """The task's own optimizer if it builds one, else the job's.

    Raises:
        TaskError: the task's is no torch optimizer.
    """
    build = getattr(task, "build_optimizer", None)
    if build is None:
        return build_optimizer(table, parameters)
    optimizer = build(list(parameters))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TaskError(
            f"build_optimizer() of the task returned a {type(optimizer).__name__}",
            remedy="return a torch.optim.Optimizer",
        )
    return optimizer
