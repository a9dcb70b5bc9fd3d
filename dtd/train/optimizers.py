"""The optimizer that a job asks for, or the task's own.

On a CPU these are torch's fused kernels, one pass over parameter, gradient and state: a sixth of
the time for Adam, a half for SGD.  They go through memory as it lies and do not look whether all
three lie alike, and gradients lie as in a contiguous parameter.  So a model with parameters in
another order (channels_last) gets `foreach`, a handful of kernels over all of them, as GPUs do.
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
    fused = all(_may_be_fused(parameter) for parameter in params)
    if table.name == "sgd":
        return torch.optim.SGD(
            params,
            lr=table.lr,
            momentum=table.momentum,
            nesterov=table.nesterov,
            weight_decay=table.weight_decay,
            fused=fused,
            foreach=not fused,
        )
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
    on_cpu = parameter.device.type == "cpu"
    return on_cpu and parameter.is_floating_point() and parameter.is_contiguous()


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
